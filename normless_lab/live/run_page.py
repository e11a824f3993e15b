"""The view of a run from the files in its folder, which may be incomplete, damaged or unrelated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normless_lab.live.view import Chart, Files, Line, View, line
from normless_lab.process import read_yaml
from normless_lab.sweeps import is_locked
from normless_lab.sweeps.worker import newest_curves
from normless_lab.train import RunDirectory, RunResult, TrainConfig

TEST = "scheme-none"
# Of an epoch's row, by chart: its unit, the columns, their names there, and colours.
_CURVES = {
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
    files, place = Files(), RunDirectory(folder, TrainConfig, RunResult)
    inner = RunDirectory(newest_curves(folder).parent, TrainConfig, RunResult)
    config, result = files.read(inner.config, read_yaml, dict), files.read(place.result, _json, dict)
    epochs, begun = files.table(inner.epochs), files.read(inner.unfinished, _pairs, list)
    findings = [finding for finding in files.read(inner.findings, _json, list) if isinstance(finding, dict)]
    steps = files.table(inner.steps)
    # The number of steps per epoch is not known for a run that diverged in its first epoch.
    in_steps = epochs.empty and not steps.empty
    of_steps = files.lines(inner.steps, partial(_step_lines, steps, begun, in_steps))
    charts: dict[str, list[Line]] = {"Loss": of_steps} if of_steps else {}
    for title, (unit, columns) in _CURVES.items():
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
        words=_words(result, len(epochs), of),
        done=begun[-1][0] if begun else len(epochs),
        of=of,
        charts=[
            Chart(title, x_label, lines, _CURVES[title][0], title in _LOG, marks if title == "Loss" else ())
            for title, lines in charts.items()
        ]
        + _probe_charts(files, inner),
        findings=[_in_words(finding) for finding in reversed(findings)],
        settings=[(str(name), str(value)) for name, value in config.items()],
        problems=files.problems,
    )


def _epoch_lines(epochs: pd.DataFrame, columns: Mapping[str, tuple[str, str]], scale: float) -> list[Line]:
    """Return the lines of a chart of `_CURVES` for which the table has numbers."""
    return [
        line(name, epochs["epoch"], epochs[column], ink, scale=scale)
        for column, (name, ink) in columns.items()
        if column in epochs and epochs[column].notna().any()
    ]


def _step_lines(steps: pd.DataFrame, begun: Sequence[tuple[float, float]], in_steps: bool) -> list[Line]:
    """Return the loss of each step over epochs, including the unfinished epoch."""
    at, losses = [], []
    if not steps.empty:
        per_epoch = 1 if in_steps else int((steps["epoch"] == 1).sum()) or 1
        at, losses = list(np.asarray(steps["step"], float) / per_epoch), list(steps["loss"])
        # While an epoch is evaluated its steps are in both files.
        begun = [] if in_steps else [point for point in begun if point[0] > at[-1] + 0.5 / per_epoch]
    at, losses = at + [epoch for epoch, _ in begun], losses + [loss for _, loss in begun]
    return [line("each step", at, losses, "quiet", 0.5)] if at else []


def _probe_charts(files: Files, place: RunDirectory) -> list[Chart]:
    """Return charts of probes over the depth of the network, at the first step, the last, and some between."""
    charts = []
    for name, (title, x_label, column, quantity) in _PROBES.items():
        paths = sorted((place.probes / name).glob("epoch-*.parquet"))
        lines: list[Line] = []
        for index in sorted({*np.linspace(0, len(paths) - 1, min(_SHOWN, len(paths)), dtype=int).tolist()}):
            opacity = 0.3 + 0.7 * (index + 1) / len(paths)
            table = files.table(paths[index])
            lines += files.lines(paths[index], partial(_one_step, table, column, quantity, opacity, first=not index))
        charts += [Chart(title, x_label, lines, log=True)] if lines else []
    return charts


def _one_step(table: pd.DataFrame, column: str, quantity: str, opacity: float, *, first: bool) -> list[Line]:
    """Return a probe's quantity at the first or last step of its table."""
    if table.empty:
        return []
    step = table["step"].min() if first else table["step"].max()
    # A layer has a row for each of its parameters, a block one.
    sizes = table[table["step"] == step].groupby(column)[quantity].agg(np.linalg.norm)
    return [line(f"step {step}", sizes.index, sizes, "scheme-skipinit", opacity)]


def _words(result: Mapping[str, Any], done: int, of: int) -> str:
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
