"""The tables of a sweep: a row per run, a row per epoch, and the optima of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.sweeps.optimum import optima
from normless.sweeps.runs import RUN_COLUMNS, RunRow
from normless.sweeps.sweep import Point, Sweep

# A run of a sweep with its hash, which takes as long to compute as a row to read.
NamedPoint = tuple[str, Point]


@dataclass(frozen=True)
class SweepResult:
    """The finished runs of a sweep.

    Attributes:
        sweep: the sweep.
        runs: a row per finished run, extensions included: the axes' columns (labels), `rate`, `seed`, `outcome`
            (trained, chance, diverged or failed), `test_accuracy`, `test_accuracy_top5` and `chance_accuracy` (of the
            best constant guess), 0..1, `test_loss`, `validation_loss`, `training_loss` and `training_loss_with_l2` of
            the last epoch (nats), `bleu` (beam search) and `validation_bleu` (0..100), `seconds_per_epoch`, `steps`,
            `parameters`, `diverged_step`, `doublings`, `epochs` (requested), `hash`, `error` (text or None). Numbers
            that a run does not have are NaN.
        epochs: a row per run and finished epoch: the axes' columns, `rate`, `seed`, `hash`, and the fields of the
            epochs of the kind of run, such as `EpochRow`; the rate of the epoch's last step is `epoch_rate`.
        missing: number of runs without a row.
    """

    sweep: Sweep
    runs: pd.DataFrame
    epochs: pd.DataFrame
    missing: int = 0

    def optima(self, metric: str) -> pd.DataFrame:
        """The best learning rate of each combination by a column of `runs`; see `normless.sweeps.optima`."""
        return optima(self.runs, axes=tuple(self.sweep.axes), metric=metric, best=self.sweep.best)


def sweep_result(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> SweepResult:
    """The tables of a sweep.

    Args:
        sweep: the sweep.
        points: its runs with their hashes, in the order of the tables' rows.
        rows: finished runs by hash.
    """
    finished = [(point, rows[name]) for name, point in points if name in rows]
    epochs = [_labels(point) | {"hash": row.hash} | epoch for point, row in finished for epoch in row.epochs()]
    columns = None if epochs else [*sweep.axes, "rate", "seed", "hash", "epoch", "seconds"]
    missing = len(points) - len(finished)
    return SweepResult(sweep, runs_table(sweep, points, rows), pd.DataFrame(epochs, columns=columns), missing)


def runs_table(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> pd.DataFrame:
    """The table of runs alone, see `SweepResult.runs`."""
    runs = [_labels(point) | rows[name].columns() for name, point in points if name in rows]
    table = pd.DataFrame(runs, columns=None if runs else [*sweep.axes, "rate", "seed", *RUN_COLUMNS])
    # As objects: in pandas' own type of text None becomes NaN.
    table["error"] = pd.Series([run["error"] for run in runs], dtype=object)
    return table


def _labels(point: Point) -> dict[str, Any]:
    return {**point.labels, "rate": point.rate, "seed": point.seed}
