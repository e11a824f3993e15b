"""The runs that a sweep needs, as far as the finished ones tell, and the rows of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import pandas as pd

from normless.sweeps.protocol import further_points
from normless.sweeps.row import RunRow
from normless.sweeps.sweep import Point, Sweep
from normless.sweeps.sweep_result import NamedPoint, SweepResult, runs_table, sweep_result


@dataclass
class Needed:
    """The runs of a sweep with the hashes that name them, and the rows of those that are finished."""

    sweep: Sweep
    points: list[NamedPoint] = field(default_factory=list)
    rows: dict[str, RunRow] = field(default_factory=dict)

    def add(self, points: Sequence[Point], read: Callable[[Collection[str]], dict[str, RunRow]]) -> None:
        """Take in more runs, and the rows of those that are finished."""
        named = [(point.config.hash, point) for point in points]
        self.points += named
        self.rows |= read([name for name, _ in named])

    @property
    def missing(self) -> dict[str, Point]:
        """The runs that have no row yet, by hash."""
        return {name: point for name, point in self.points if name not in self.rows}

    def result(self) -> SweepResult:
        """The tables of the finished runs."""
        return sweep_result(self.sweep, self.points, self.rows)

    def complete_runs(self) -> pd.DataFrame:
        """The table of runs of those combinations of labels alone whose every run is finished."""
        incomplete = {tuple(point.labels.values()) for point in self.missing.values()}
        chosen = [(name, point) for name, point in self.points if tuple(point.labels.values()) not in incomplete]
        return runs_table(self.sweep, chosen, self.rows)


def needed_runs(sweep: Sweep, metrics: Sequence[str], read: Callable[[Collection[str]], dict[str, RunRow]]) -> Needed:
    """The runs of a sweep's grid, and of its extensions as far as the finished runs tell that they are needed.

    Args:
        sweep: what is asked for.
        metrics: columns of the table of runs whose optima are not to lie at an end of the rates.
        read: gives the rows of those of some hashes that have one.
    """
    found = Needed(sweep)
    further: Sequence[Point] = sweep.points()
    while further:
        found.add(further, read)
        # A combination that misses a run is not extended before it has it: this ends.
        runs = found.complete_runs()
        further = further_points(sweep, runs, metrics) if len(runs) else ()
    return found
