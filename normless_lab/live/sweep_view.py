"""The view of a sweep, or of all runs in a folder: progress, running runs, the best runs, errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from normless_lab.live.view import Chart, Files, Line, View, line
from normless_lab.plots import Column, Table
from normless_lab.process import read_yaml
from normless_lab.sweeps import OUTCOMES, Laboratory, RunRow, Sweep, is_locked, is_minimized
from normless_lab.sweeps.result_tables import needed_runs
from normless_lab.sweeps.worker import LOCK, newest_curves

Labels = Mapping[str, Any]
# Number of runs in a table, and of drawn curves.
LISTED, DRAWN = 10, 6
INKS = [f"scheme-{name}" for name in ("skipinit", "none", "fixup", "sqrt2", "rezero", "lsuv")]
_NUMBERS = ("rate", "seed")
_CURVES = {
    "training_loss": ("Training loss of running runs", ""),
    "test_accuracy": ("Test accuracy of running runs", "%"),
    "validation_loss": ("Validation loss of running runs", ""),
}


class SweepViewer:
    """Repeated views of a sweep; rows that were read are kept, except those of failed runs, which may be retried.

    Args:
        lab: the laboratory of the runs; without `sweep`, every run in its folder is shown.
        metrics: the first metric ranks the best runs; all of them extend the sweep's learning rates.
    """

    def __init__(self, lab: Laboratory, metrics: Sequence[str], sweep: Sweep | None = None) -> None:
        self._lab, self._metrics, self._sweep = lab, metrics, sweep
        self._rows: dict[str, RunRow] = {}

    def view(self) -> View:
        """Return the view from the current table of runs and the folders of unfinished runs."""
        files = Files()
        begun = {path.parent.name: path.parent for path in sorted(self._lab.work.glob(f"*/{LOCK}"))}
        if self._sweep is None:
            rows = self._read(self._lab.state.hashes())
            begun = {name: path for name, path in begun.items() if name not in rows}
            settings = {name: files.read(path / "config.yaml", read_yaml, dict) for name, path in begun.items()}
            runs = _differing({name: row.config for name, row in rows.items()} | settings)
            epochs = {name: values.get("epochs", "?") for name, values in settings.items()}
            wanted = 0
        else:
            needed = needed_runs(self._sweep, self._metrics, self._read)
            rows, wanted = needed.rows, len(needed.points)
            runs = {name: {**point.labels, "rate": point.rate, "seed": point.seed} for name, point in needed.points}
            begun = {name: begun[name] for name in needed.missing if name in begun}
            epochs = {name: point.config.epochs for name, point in needed.points}
        running = {name: path for name, path in begun.items() if is_locked(path)}
        curves = {name: files.table(newest_curves(path)) for name, path in running.items()}
        counts = Counter(row.outcome for row in rows.values())
        errors = Counter(row.error for row in rows.values() if row.error is not None)
        waiting = f", {len(begun) - len(running)} interrupted" if len(begun) > len(running) else ""
        words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        return View(
            title=self._lab.folder.resolve().name if self._sweep is None else self._sweep.name,
            state="running" if running else "finished" if 0 < wanted <= len(rows) else "waiting",
            words=f"{len(rows)}{f' of {wanted}' if wanted else ''} runs finished{f' ({words})' if words else ''}, "
            f"{len(running)} running{waiting}",
            done=len(rows),
            of=wanted,
            charts=_charts(files, runs, curves),
            findings=[(f"{count} runs failed: {error}", "") for error, count in errors.most_common(LISTED)],
            tables=[table for table in (_running(runs, curves, epochs), self._best(runs, rows)) if table.rows],
            problems=files.problems,
        )

    def _read(self, hashes: Collection[str]) -> dict[str, RunRow]:
        there = self._lab.state.finished(hashes)
        new = self._lab.state.read([name for name in there if name not in self._rows])
        self._rows |= {name: row for name, row in new.items() if row.outcome != "failed"}
        return {name: new.get(name) or self._rows[name] for name in there if name in new or name in self._rows}

    def _best(self, runs: Mapping[str, Labels], rows: Mapping[str, RunRow]) -> Table:
        """Return the finished runs that are best by the first metric."""
        metric = self._metrics[0]
        values = {name: row.columns().get(metric, math.nan) for name, row in rows.items()}
        ranked = sorted(
            (name for name, value in values.items() if value == value),
            key=lambda name: values[name] if is_minimized(metric) else -values[name],
        )
        cells = {name: (rows[name].outcome, f"{values[name]:.4g}") for name in ranked[:LISTED]}
        return _table(f"Best by {metric}", runs, cells, (Column("outcome"), Column(metric, True)))


def _running(runs: Mapping[str, Labels], curves: Mapping[str, pd.DataFrame], of: Mapping[str, Any]) -> Table:
    cells = {name: (f"{len(epochs)} of {of[name]}",) for name, epochs in list(curves.items())[:LISTED]}
    return _table(f"Running ({len(curves)})", runs, cells, (Column("epochs finished", True),))


def _table(
    caption: str, runs: Mapping[str, Labels], cells: Mapping[str, Sequence[str]], further: Sequence[Column]
) -> Table:
    """Return a row for each run with cells: its labels, then the cells."""
    axes = list(dict.fromkeys(axis for name in cells for axis in runs[name]))
    columns = [*(Column(axis, axis in _NUMBERS) for axis in axes), *further]
    return Table(caption, columns, [(*_texts(runs[name], axes), *of) for name, of in cells.items()])


def _charts(files: Files, runs: Mapping[str, Labels], curves: Mapping[str, pd.DataFrame]) -> list[Chart]:
    """Return a chart for each curve, with a line per running run."""
    charts = []
    for column, (title, unit) in _CURVES.items():
        lines: list[Line] = []
        for index, (name, epochs) in enumerate(list(curves.items())[:DRAWN]):
            if column in epochs and epochs[column].notna().any():
                label = ", ".join(
                    f"{axis} {text}" if axis in _NUMBERS else text
                    for axis, text in zip(runs[name], _texts(runs[name], runs[name]), strict=True)
                )
                draw = partial(line, label, epochs["epoch"], epochs[column], INKS[index], scale=100 if unit else 1)
                lines += files.lines(Path(name[:8]), draw)
        if lines:
            charts.append(Chart(title, "epoch", lines, unit, log=not unit))
    return charts


def _texts(labels: Labels, axes: Iterable[str]) -> list[str]:
    return [f"{value:.4g}" if isinstance(value := labels.get(axis, "–"), float) else str(value) for axis in axes]


def _differing(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Labels]:
    """Return the known settings of each run that differ between runs, and always rate and seed."""
    names = dict.fromkeys(name for values in settings.values() for name in values)
    texts = {name: {str(values.get(name)) for values in settings.values() if values} for name in names}
    shown = [name for name in names if len(texts[name]) > 1 and name not in _NUMBERS]
    return {run: {name: values.get(name) for name in (*shown, *_NUMBERS)} for run, values in settings.items()}
