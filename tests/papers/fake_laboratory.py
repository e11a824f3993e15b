"""A laboratory that trains nothing: it notes the runs it is asked for, and ends each as a function says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from normless_lab.sweeps import (
    Laboratory,
    Point,
    RunOutcome,
    RunRow,
    Sweep,
    SweepResult,
    further_points,
    sweep_result,
)
from normless_lab.train import Settings
from normless_papers.artefact import Context


class RequestedError(Exception):
    """Ends an artefact at its first request for runs, which the laboratory has noted."""


@dataclass(frozen=True)
class Ended:
    """How a run ends: its outcome, and numbers by their names in a result; `epochs` has a mapping per epoch."""

    result: Mapping[str, Any] = field(default_factory=dict)
    outcome: RunOutcome = "trained"
    epochs: Sequence[Mapping[str, Any]] = ()


class FakeLaboratory:
    """Stands for a `Laboratory`.

    Args:
        end: of a run; the first request raises `RequestedError` if None.
        extends: whether learning rates are extended where an optimum lies at their end.

    Attributes:
        sweeps: those that were asked for.
        points: their runs, with extensions.
        configs: of all runs that were asked for.
    """

    def __init__(self, end: Callable[[Point], Ended] | None = None, *, extends: bool = False) -> None:
        self.sweeps: list[Sweep] = []
        self.points: list[Point] = []
        self.configs: list[Settings] = []
        self._end = end
        self._extends = extends
        self._rows: dict[Settings, RunRow] = {}

    def run(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """As `Laboratory.run`."""
        self.sweeps.append(sweep)
        named: list[tuple[str, Point]] = []
        rows: dict[str, RunRow] = {}
        further = sweep.points()
        while further:
            self.points += further
            for point in further:
                row = self._row_of(point)
                named.append((row.hash, point))
                rows[row.hash] = row
            result = sweep_result(sweep, named, rows)
            further = further_points(sweep, result.runs, metrics) if self._extends else ()
            self._check()
        return result

    def run_all(self, sweeps: Sequence[Sweep], *, metrics: Sequence[str] = ("test_accuracy",)) -> list[SweepResult]:
        """As `Laboratory.run_all`."""
        return [self.run(sweep, metrics=metrics) for sweep in sweeps]

    def carry_out(self, configs: Sequence[Settings]) -> list[RunRow]:
        """As `Laboratory.carry_out`."""
        rows = [
            self._rows.get(config) or self._row_of(Point({}, config.rate, config.seed, config)) for config in configs
        ]
        self._check()
        return rows

    def weights(self, configs: Sequence[Settings]) -> list[Path]:
        """There are none of runs that were not trained."""
        self.carry_out(configs)
        raise RequestedError

    def _check(self) -> None:
        if self._end is None:
            raise RequestedError

    def _row_of(self, point: Point) -> RunRow:
        config = point.config
        self.configs.append(config)
        ended = Ended() if self._end is None else self._end(point)
        failed = ended.outcome == "failed"
        result = None if failed else {**ended.result, "epochs": list(ended.epochs)}
        error = "ValueError: no" if failed else None
        # A name instead of the hash, which takes longer than all the rest.
        name, values = f"run-{len(self.configs)}", config.to_dict()
        self._rows[config] = RunRow(name, config.KIND, values, ended.outcome, error, result, 1.0, "", "", {})
        return self._rows[config]


def recorded(
    context: Context, outcome: Callable[[Settings], tuple[RunOutcome, float]]
) -> tuple[Context, FakeLaboratory]:
    """The same context with a laboratory whose runs have the outcome and test accuracy of a function."""

    def end(point: Point) -> Ended:
        ends_as, accuracy = outcome(point.config)
        numbers = {"test_accuracy": accuracy, "chance_accuracy": 0.1, "test_loss": 2.0, "steps": 10}
        return Ended({**numbers, "diverged_step": None}, ends_as)

    lab = FakeLaboratory(end)
    return replace(context, lab=cast(Laboratory, lab)), lab
