"""The views of a run and of a sweep, from their current files."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normless_lab.live._view import Chart, Curve, RunFiles, View, line
from normless_lab.plots import Column, Table
from normless_lab.process import read_yaml
from normless_lab.sweeps import OUTCOMES, Laboratory, RunRow, Sweep, is_minimized
from normless_lab.sweeps._result_tables import needed_runs
from normless_lab.sweeps._runs import LOCK, is_locked, newest_curves
from normless_lab.train import RunResult, TrainConfig
from normless_lab.train._directory import RunDirectory

TEST = "scheme-none"
# Of an epoch's row, by chart: its unit, the columns, their names there, and colours.
_CHARTS = {
    "Loss": (
        "",
        {
            "training_loss": ("training", "scheme-skipinit"),
            "test_loss": ("test", TEST),
            "validation_loss": ("validation", TEST),
        },
    ),
    "Accuracy": (
        "%",
        {
            "training_accuracy": ("training", "scheme-skipinit"),
            "test_accuracy": ("test", TEST),
            "test_accuracy_top5": ("test, top five", "scheme-fixup"),
            "validation_accuracy": ("validation", TEST),
        },
    ),
    "BLEU": ("", {"validation_bleu": ("validation", TEST)}),
    "Learning rate": ("", {"rate": ("at the end of the epoch", "scheme-fixup")}),
}
_LOG = ("Loss", "Learning rate")
# Of the tables of probes: the title of the chart, its axis, the column along it, and what is drawn.
_PROBES = {
    "signal": ("Signal after each block, E[x²]", "block", "block", "sum_second_moment"),
    "gradients": ("Gradient of each layer, ‖∂L/∂w‖", "layer, in order of execution", "order", "norm"),
}
# A larger number of epochs, or step of a finding, is damage.
MOST_EPOCHS = 10**12
# Steps of a probe that are drawn.
_SHOWN = 5


def run_view(folder: Path) -> View:
    """Return the view of a run from its current files."""
    files, place = RunFiles(), RunDirectory(folder, TrainConfig, RunResult)
    inner = RunDirectory(newest_curves(folder).parent, TrainConfig, RunResult)
    config, result = files.read(inner.config, read_yaml, dict), files.read(place.result, _json, dict)
    epochs, begun = files.table(inner.epochs), files.read(inner.unfinished, _pairs, list)
    findings = [finding for finding in files.read(inner.findings, _json, list) if isinstance(finding, dict)]
    steps = files.table(inner.steps)
    # The number of steps per epoch is not known for a run that diverged in its first epoch.
    in_steps = epochs.empty and not steps.empty
    of_steps = files.lines(inner.steps, partial(_step_lines, steps, begun, in_steps))
    charts: dict[str, list[Curve]] = {"Loss": of_steps} if of_steps else {}
    for title, (unit, columns) in _CHARTS.items():
        draw = partial(_epoch_lines, epochs, columns, 100.0 if unit else 1.0)
        lines = [*charts.pop(title, ()), *files.lines(inner.epochs, draw)]
        charts |= {title: lines} if lines else {}
    of = config.get("epochs")
    of = of if isinstance(of, int) and 0 < of < MOST_EPOCHS else 0
    running = not result and is_locked(folder, place.lock.name)
    x_label, key = ("step", "step") if in_steps else ("epoch", "epochs")
    places = [finding.get(key) for finding in findings]
    marks = [float(place) for place in places if isinstance(place, (int, float)) and abs(place) < MOST_EPOCHS]
    return View(
        title=folder.resolve().name,
        state=str(result.get("outcome", "unknown")) if result else "running" if running else "interrupted",
        words=_progress(result, len(epochs), of),
        done=begun[-1][0] if begun else len(epochs),
        of=of,
        charts=[
            Chart(title, x_label, lines, _CHARTS[title][0], title in _LOG, marks if title == "Loss" else ())
            for title, lines in charts.items()
        ]
        + _probe_charts(files, inner),
        findings=[_in_words(finding) for finding in reversed(findings)],
        settings=[(str(name), str(value)) for name, value in config.items()],
        problems=files.problems,
    )


def _epoch_lines(epochs: pd.DataFrame, columns: Mapping[str, tuple[str, str]], scale: float) -> list[Curve]:
    """Return the lines of a chart of `_CHARTS` for which the table has numbers."""
    return [
        line(name, epochs["epoch"], epochs[column], ink, scale=scale)
        for column, (name, ink) in columns.items()
        if column in epochs and epochs[column].notna().any()
    ]


def _step_lines(steps: pd.DataFrame, begun: Sequence[tuple[float, float]], in_steps: bool) -> list[Curve]:
    """Return the loss of each step over epochs, including the unfinished epoch."""
    at, losses = [], []
    if not steps.empty:
        per_epoch = 1 if in_steps else int((steps["epoch"] == 1).sum()) or 1
        at, losses = list(np.asarray(steps["step"], float) / per_epoch), list(steps["loss"])
        # While an epoch is evaluated its steps are in both files.
        begun = [] if in_steps else [point for point in begun if point[0] > at[-1] + 0.5 / per_epoch]
    at, losses = at + [epoch for epoch, _ in begun], losses + [loss for _, loss in begun]
    return [line("each step", at, losses, "quiet", 0.5)] if at else []


def _probe_charts(files: RunFiles, place: RunDirectory) -> list[Chart]:
    """Return charts of probes over the depth of the network, at the first step, the last, and some between."""
    charts = []
    for name, (title, x_label, column, quantity) in _PROBES.items():
        paths = sorted((place.probes / name).glob("epoch-*.parquet"))
        lines: list[Curve] = []
        for index in sorted({*np.linspace(0, len(paths) - 1, min(_SHOWN, len(paths)), dtype=int).tolist()}):
            opacity = 0.3 + 0.7 * (index + 1) / len(paths)
            table = files.table(paths[index])
            lines += files.lines(paths[index], partial(_one_step, table, column, quantity, opacity, first=not index))
        charts += [Chart(title, x_label, lines, log=True)] if lines else []
    return charts


def _one_step(table: pd.DataFrame, column: str, quantity: str, opacity: float, *, first: bool) -> list[Curve]:
    """Return a probe's quantity at the first or last step of its table."""
    if table.empty:
        return []
    step = table["step"].min() if first else table["step"].max()
    # A layer has a row for each of its parameters, a block one.
    sizes = table[table["step"] == step].groupby(column)[quantity].agg(np.linalg.norm)
    return [line(f"step {step}", sizes.index, sizes, "scheme-skipinit", opacity)]


def _progress(result: Mapping[str, Any], done: int, of: int) -> str:
    """Return the progress or the outcome of a run in words."""
    words = f"{done} of {of} epochs finished" if of else f"{done} epochs finished"
    if result.get("diverged_step") is not None:
        words += f"; the loss diverged at step {result['diverged_step']}"
    accuracy = result.get("test_accuracy")
    return words + (f"; test accuracy {accuracy:.2%}" if isinstance(accuracy, float) else "")


def _in_words(finding: Mapping[str, Any]) -> tuple[str, str]:
    """Return the sentence of a finding and its cure."""
    cure, evidence = finding.get("cure"), finding.get("evidence")
    step = f"Step {evidence['step']}: " if isinstance(evidence, dict) and "step" in evidence else ""
    return f"{step}{finding.get('title', '')}", str(cure.get("words", "")) if isinstance(cure, dict) else ""


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _pairs(path: Path) -> list[tuple[float, float]]:
    """Return the epochs and losses of complete lines; the last line may be incomplete."""
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [(float(at), float(loss)) for at, loss in (text.split(",") for text in whole.splitlines())]


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
        files = RunFiles()
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
        return _table_of(f"Best by {metric}", runs, cells, (Column("outcome"), Column(metric, True)))


def _running(runs: Mapping[str, Labels], curves: Mapping[str, pd.DataFrame], of: Mapping[str, Any]) -> Table:
    cells = {name: (f"{len(epochs)} of {of[name]}",) for name, epochs in list(curves.items())[:LISTED]}
    return _table_of(f"Running ({len(curves)})", runs, cells, (Column("epochs finished", True),))


def _table_of(
    caption: str, runs: Mapping[str, Labels], cells: Mapping[str, Sequence[str]], further: Sequence[Column]
) -> Table:
    """Return a row for each run with cells: its labels, then the cells."""
    axes = list(dict.fromkeys(axis for name in cells for axis in runs[name]))
    columns = [*(Column(axis, axis in _NUMBERS) for axis in axes), *further]
    return Table(caption, columns, [(*_texts(runs[name], axes), *of) for name, of in cells.items()])


def _charts(files: RunFiles, runs: Mapping[str, Labels], curves: Mapping[str, pd.DataFrame]) -> list[Chart]:
    """Return a chart for each curve, with a line per running run."""
    charts = []
    for column, (title, unit) in _CURVES.items():
        lines: list[Curve] = []
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
