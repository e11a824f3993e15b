"""The runs that a sweep still needs: those of its grid, and extensions of the grid where the optimum is at an end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pandas as pd

from normless.sweeps.optimum import optima
from normless.sweeps.result_tables import NamedPoint, SweepResult, runs_table, sweep_result
from normless.sweeps.runs import RunRow
from normless.sweeps.sweep import Labels, Point, Sweep


@dataclass
class NeededRuns:
    """The runs of a sweep with their hashes, and the rows of the finished ones."""

    sweep: Sweep
    points: list[NamedPoint] = field(default_factory=list)
    rows: dict[str, RunRow] = field(default_factory=dict)

    def add(self, points: Sequence[Point], read: Callable[[Collection[str]], dict[str, RunRow]]) -> None:
        """Add runs, and read the rows of those that are finished."""
        named = [(point.config.hash, point) for point in points]
        self.points += named
        self.rows |= read([name for name, _ in named])

    @property
    def missing(self) -> dict[str, Point]:
        """The runs without a row, by hash."""
        return {name: point for name, point in self.points if name not in self.rows}

    def result(self) -> SweepResult:
        """The tables of the finished runs."""
        return sweep_result(self.sweep, self.points, self.rows)

    def complete_runs(self) -> pd.DataFrame:
        """The table of runs of the combinations whose runs are all finished."""
        incomplete = {tuple(point.labels.values()) for point in self.missing.values()}
        complete = [(name, point) for name, point in self.points if tuple(point.labels.values()) not in incomplete]
        return runs_table(self.sweep, complete, self.rows)


def needed_runs(
    sweep: Sweep, metrics: Sequence[str], read: Callable[[Collection[str]], dict[str, RunRow]]
) -> NeededRuns:
    """The runs of a sweep's grid, and of the extensions that the finished runs require."""
    needed = NeededRuns(sweep)
    further: Sequence[Point] = sweep.points()
    while further:
        needed.add(further, read)
        # Ends because a combination with a missing run is not extended.
        runs = needed.complete_runs()
        further = further_points(sweep, runs, metrics) if len(runs) else ()
    return needed


def further_points(sweep: Sweep, runs: pd.DataFrame, metrics: Sequence[str]) -> tuple[Point, ...]:
    """The runs that extend the grid where the optimum of a metric lies at its end; empty when it is complete.

    Args:
        sweep: the sweep.
        runs: its table of runs so far, including earlier extensions.
        metrics: each has an optimum of its own.
    """
    axes = list(sweep.axes)
    tried: dict[Labels, set[float]] = {labels: set() for labels in sweep.combinations}
    for *labels, rate in runs[[*axes, "rate"]].drop_duplicates().itertuples(index=False, name=None):
        tried[tuple(labels)].add(float(rate))
    edges: dict[Labels, set[str]] = {labels: set() for labels in tried}
    for metric in metrics:
        table = optima(runs, axes=axes, metric=metric, best=sweep.best)
        for *labels, edge in table[[*axes, "edge"]].itertuples(index=False, name=None):
            edges[cast(Labels, tuple(labels))].add(str(edge))
    rates = extended(sweep, {labels: rates for labels, rates in tried.items() if rates}, edges)
    return tuple(point for labels, more in rates.items() for point in sweep.points_at(labels, more))


def extended(
    sweep: Sweep, tried: Mapping[Labels, Iterable[float]], edges: Mapping[Labels, Iterable[str]]
) -> dict[Labels, tuple[float, ...]]:
    """The learning rates to try next, by combination; combinations that need none are left out."""
    rates = {
        labels: sweep.rates_of(labels).beyond(tuple(tried[labels]), tuple(edges.get(labels, ()))) for labels in tried
    }
    return {labels: more for labels, more in rates.items() if more}
