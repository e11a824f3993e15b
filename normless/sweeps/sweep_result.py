"""What a sweep measured: a row per run, a row per epoch, and the optima of any metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.sweeps.optimum import optima
from normless.sweeps.row import RunRow
from normless.sweeps.sweep import Point, Sweep

# A run of a sweep and the hash that names it: to compute it takes as long as to read a row.
NamedPoint = tuple[str, Point]

# Columns of the table of runs and what they are called in a result; the first that a kind of run has.
RESULT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "test_accuracy": ("test_accuracy",),
    "test_accuracy_top5": ("test_accuracy_top5",),
    "chance_accuracy": ("chance_accuracy",),
    "test_loss": ("test_loss",),
    "validation_loss": ("validation_loss",),
    "bleu": ("test_bleu_beam",),
    "validation_bleu": ("validation_bleu",),
    "seconds_per_epoch": ("seconds_per_epoch",),
    "steps": ("steps",),
    "parameters": ("parameters",),
    "diverged_step": ("diverged_step",),
    "doublings": ("doublings",),
}
# Columns that are those of the last finished epoch.
EPOCH_COLUMNS = ("training_loss", "training_loss_with_l2")
# What an optimum may be asked for by.
METRICS = (*RESULT_COLUMNS, *EPOCH_COLUMNS)


@dataclass(frozen=True)
class SweepResult:
    """The finished runs of a sweep.

    Attributes:
        sweep: what was asked for.
        runs: a row per finished run, those at rates beyond the grid included: the axes' columns (labels), `rate`,
            `seed`, `outcome` (trained, chance, diverged or failed), `test_accuracy`, `test_accuracy_top5` and
            `chance_accuracy` (that of the best constant guess), 0..1, `test_loss`, `validation_loss`,
            `training_loss` and `training_loss_with_l2` of the last epoch (nats), `bleu` (beam search) and
            `validation_bleu` (0..100), `seconds_per_epoch`, `steps`, `parameters`, `diverged_step`, `doublings`,
            `epochs` (asked for), `hash`, `error` (text or None). Numbers that a run does not have are NaN.
        epochs: a row per run and finished epoch: the axes' columns, `rate`, `seed`, `hash`, and the fields of the
            kind of run's epochs, such as `EpochRow`; the rate of the epoch's last step is `epoch_rate`.
        missing: runs that are known to be needed and have no row yet.
    """

    sweep: Sweep
    runs: pd.DataFrame
    epochs: pd.DataFrame
    missing: int = 0

    def optima(self, metric: str) -> pd.DataFrame:
        """The best learning rate of each combination by a column of `runs`; see `normless.sweeps.optimum.optima`."""
        return optima(self.runs, axes=tuple(self.sweep.axes), metric=metric, best=self.sweep.best)


def sweep_result(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> SweepResult:
    """The tables of a sweep.

    Args:
        sweep: what was asked for.
        points: its runs with their hashes, in the order of the tables' rows.
        rows: finished runs by hash.
    """
    found = _finished(points, rows)
    epochs = [_labels(point) | {"hash": row.hash} | one for point, row in found for one in epoch_rows(row)]
    columns = None if epochs else [*sweep.axes, "rate", "seed", "hash", "epoch", "seconds"]
    missing = len(points) - len(found)
    return SweepResult(sweep, runs_table(sweep, points, rows), pd.DataFrame(epochs, columns=columns), missing)


def runs_table(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> pd.DataFrame:
    """The table of runs alone, of a sweep's points that are finished; see `SweepResult.runs`."""
    found = _finished(points, rows)
    runs = [_labels(point) | run_columns(row) for point, row in found]
    table = pd.DataFrame(runs, columns=None if runs else [*sweep.axes, "rate", "seed", *RUN_COLUMNS])
    # Else pandas would take texts for a type of its own, in which None is not a number.
    table["error"] = pd.Series([row.error for _, row in found], dtype=object)
    return table


def _finished(points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> list[tuple[Point, RunRow]]:
    return [(point, rows[name]) for name, point in points if name in rows]


RUN_COLUMNS = ("outcome", *METRICS, "epochs", "hash", "error")


def run_columns(row: RunRow) -> dict[str, Any]:
    """A finished run as a row of the table of runs, without labels."""
    result = row.result or {}
    numbers = {
        column: next((number(result[name]) for name in names if name in result), math.nan)
        for column, names in RESULT_COLUMNS.items()
    }
    last = result["epochs"][-1] if result.get("epochs") else {}
    columns = {"outcome": row.outcome} | numbers | {name: number(last.get(name)) for name in EPOCH_COLUMNS}
    return columns | {"epochs": row.config.get("epochs"), "hash": row.hash, "error": row.error}


def epoch_rows(row: RunRow) -> list[dict[str, Any]]:
    """The finished epochs of a run as rows of numbers."""
    epochs = (row.result or {}).get("epochs", ())
    return [
        {
            "epoch_rate" if name == "rate" else name: value if name == "epoch" else number(value)
            for name, value in one.items()
        }
        for one in epochs
    ]


def number(value: Any) -> float:
    """A number as the JSON of a report holds it: `inf` and `nan` are texts there, and what there is not is null."""
    return math.nan if value is None else float(value)


def _labels(point: Point) -> dict[str, Any]:
    return {**point.labels, "rate": point.rate, "seed": point.seed}
