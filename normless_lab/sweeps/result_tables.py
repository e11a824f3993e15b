"""The runs that a sweep needs, and its tables: a row per run, a row per epoch, and the optima of a metric."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless_lab.sweeps.optimum import optima
from normless_lab.sweeps.runs import ABOUT, RunRow
from normless_lab.sweeps.sweep import Labels, Point, Sweep

# A run of a sweep with its hash, which takes as long to compute as a row to read.
NamedPoint = tuple[str, Point]


@dataclass(frozen=True)
class SweepResult:
    """The finished runs of a sweep.

    Attributes:
        sweep: the sweep.
        runs: a row per finished run, extensions included: the axes' columns (labels), `rate`, `seed`, `outcome`
            (trained, chance, diverged or failed), `test_accuracy`, `test_accuracy_top5` and `chance_accuracy` (of the
            best constant guess), 0..1, `test_loss`, `training_loss` and `training_loss_with_l2` of the last epoch
            (nats), `seconds_per_epoch`, `steps`, `parameters`, `diverged_step`, the metrics of the kind of run,
            `epochs` (requested), `hash`, `error` (text or None). Numbers that a run does not have are NaN.
        epochs: a row per run and finished epoch: the axes' columns, `rate`, `seed`, `hash`, and the fields of the
            epochs of the kind of run, such as `EpochRow`; the rate of the epoch's last step is `epoch_rate`.
        missing: number of runs without a row.
    """

    sweep: Sweep
    runs: pd.DataFrame
    epochs: pd.DataFrame
    missing: int = 0

    def optima(self, metric: str) -> pd.DataFrame:
        """The best learning rate of each combination by a column of `runs`; see `normless_lab.sweeps.optima`."""
        return optima(self.runs, axes=tuple(self.sweep.axes), metric=metric, best=self.sweep.best)


def sweep_result(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> SweepResult:
    """Return the tables of a sweep, from its runs with their hashes, in this order, and the finished rows by hash."""
    finished = [(point, rows[name]) for name, point in points if name in rows]
    epochs = [_labels(point) | {"hash": row.hash} | epoch for point, row in finished for epoch in row.epochs()]
    columns = None if epochs else [*sweep.axes, "rate", "seed", "hash", "epoch", "seconds"]
    missing = len(points) - len(finished)
    return SweepResult(sweep, _runs_table(sweep, points, rows), pd.DataFrame(epochs, columns=columns), missing)


def _runs_table(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> pd.DataFrame:
    """The table of runs alone, see `SweepResult.runs`."""
    runs = [_labels(point) | rows[name].columns() for name, point in points if name in rows]
    table = pd.DataFrame(
        runs, columns=None if runs else [*sweep.axes, "rate", "seed", "outcome", *sweep.metrics, *ABOUT]
    )
    # As objects: in pandas' own type of text None becomes NaN.
    table["error"] = pd.Series([run["error"] for run in runs], dtype=object)
    return table


def _labels(point: Point) -> dict[str, Any]:
    return {**point.labels, "rate": point.rate, "seed": point.seed}


@dataclass(frozen=True)
class NeededRuns:
    """The runs of a sweep with their hashes, and the rows of the finished ones."""

    sweep: Sweep
    points: list[NamedPoint]
    rows: dict[str, RunRow]

    @property
    def missing(self) -> dict[str, Point]:
        """The runs without a row, by hash."""
        return {name: point for name, point in self.points if name not in self.rows}

    def result(self) -> SweepResult:
        """The tables of the finished runs."""
        return sweep_result(self.sweep, self.points, self.rows)

    def complete_runs(self) -> pd.DataFrame:
        """The table of runs of the combinations with only finished runs."""
        incomplete = {tuple(point.labels.values()) for point in self.missing.values()}
        complete = [(name, point) for name, point in self.points if tuple(point.labels.values()) not in incomplete]
        return _runs_table(self.sweep, complete, self.rows)


def needed_runs(
    sweep: Sweep, metrics: Sequence[str], read: Callable[[Collection[str]], dict[str, RunRow]]
) -> NeededRuns:
    """The runs of a sweep's grid, and of the extensions that the finished runs require."""
    needed = NeededRuns(sweep, [], {})
    further: Sequence[Point] = sweep.points()
    while further:
        named = [(point.config.hash, point) for point in further]
        needed.points.extend(named)
        needed.rows.update(read([name for name, _ in named]))
        # Ends because a combination with a missing run is not extended.
        runs = needed.complete_runs()
        further = further_points(sweep, runs, metrics) if len(runs) else ()
    return needed


def further_points(sweep: Sweep, runs: pd.DataFrame, metrics: Sequence[str]) -> tuple[Point, ...]:
    """Return the runs that extend the grid if the optimum of a metric lies at its end; empty if it is complete.

    `runs` is the sweep's table of runs so far, including earlier extensions; each metric has its own optimum.
    """
    axes = list(sweep.axes)
    tried: dict[Labels, set[float]] = {}
    for *labels, rate in runs[[*axes, "rate"]].itertuples(index=False, name=None):
        tried.setdefault(tuple(labels), set()).add(float(rate))
    edges: dict[Labels, set[str]] = {labels: set() for labels in tried}
    for metric in metrics:
        table = optima(runs, axes=axes, metric=metric, best=sweep.best)
        for *labels, edge in table[[*axes, "edge"]].itertuples(index=False, name=None):
            edges[tuple(labels)].add(str(edge))
    ordered = {labels: tried[labels] for labels in sweep.combinations if labels in tried}
    rates = extended(sweep, ordered, edges)
    return tuple(point for labels, more in rates.items() for point in sweep.points_at(labels, more))


def extended(
    sweep: Sweep, tried: Mapping[Labels, Iterable[float]], edges: Mapping[Labels, Iterable[str]]
) -> dict[Labels, tuple[float, ...]]:
    """Return the learning rates to try next by combination, without combinations that need none."""
    rates = {labels: sweep.rates_of(labels).beyond(tuple(tried[labels]), tuple(edges[labels])) for labels in tried}
    return {labels: more for labels, more in rates.items() if more}
