"""Where a sweep stands, from the table of finished runs and the folders of those in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normless.sweeps.in_flight import Flight, flight_in
from normless.sweeps.laboratory import Laboratory
from normless.sweeps.pending import Needed, needed_runs
from normless.sweeps.row import OUTCOMES, RunOutcome
from normless.sweeps.sweep import Point, Sweep


@dataclass(frozen=True)
class CombinationStatus:
    """How many runs of a combination of labels are wanted, and how many ended how; `running` are in flight."""

    labels: Mapping[str, str]
    wanted: int
    outcomes: Mapping[RunOutcome, int]
    running: int

    @property
    def finished(self) -> int:
        """Runs with a row, failed ones among them."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class RunningStatus:
    """A run in flight: which it is, and how many of its epochs are finished."""

    labels: Mapping[str, str]
    rate: float
    seed: int
    epochs: int
    of: int
    hash: str


@dataclass(frozen=True)
class SweepStatus:
    """Where a sweep stands.

    Attributes:
        name: of the sweep.
        combinations: in the order of the sweep.
        running: runs that a process works on now; those of other machines only where the folder is shared.
        interrupted: runs that are begun and nobody works on.
        errors: what failed runs raised, the most frequent first, with how often.
    """

    name: str
    combinations: tuple[CombinationStatus, ...]
    running: tuple[RunningStatus, ...]
    interrupted: int
    errors: tuple[tuple[str, int], ...]

    @property
    def wanted(self) -> int:
        """Runs that are known to be needed; extensions of the learning rates may add some."""
        return sum(one.wanted for one in self.combinations)

    @property
    def finished(self) -> int:
        """Runs with a row."""
        return sum(one.finished for one in self.combinations)

    @property
    def outcomes(self) -> dict[RunOutcome, int]:
        """How many runs ended how."""
        return {outcome: sum(one.outcomes[outcome] for one in self.combinations) for outcome in OUTCOMES}

    def to_dict(self) -> dict[str, Any]:
        """What ``normless sweep status --json`` prints."""
        return {
            "name": self.name,
            "wanted": self.wanted,
            "finished": self.finished,
            "outcomes": self.outcomes,
            "combinations": [vars(one) | {"finished": one.finished} for one in self.combinations],
            "running": [vars(one) for one in self.running],
            "interrupted": self.interrupted,
            "errors": [{"error": error, "runs": runs} for error, runs in self.errors],
        }


def sweep_status(lab: Laboratory, sweep: Sweep, metrics: Sequence[str]) -> SweepStatus:
    """Where a sweep stands now.

    Args:
        lab: whose runs these are.
        sweep: what is asked for.
        metrics: whose optima extend the learning rates.

    Raises:
        StateError: the table cannot be read.
    """
    needed = needed_runs(sweep, metrics, lab.state.read)
    missing = needed.missing
    flights = [flight_in(lab.work / name) for name in missing if (lab.work / name).is_dir()]
    running = [flight for flight in flights if flight.running]
    errors = Counter(row.error for row in needed.rows.values() if row.error is not None)
    return SweepStatus(
        name=sweep.name,
        combinations=_combinations(needed, {flight.hash for flight in running}),
        running=tuple(_running(flight, missing[flight.hash]) for flight in running),
        interrupted=len(flights) - len(running),
        errors=tuple(errors.most_common()),
    )


def _running(flight: Flight, point: Point) -> RunningStatus:
    return RunningStatus(point.labels, point.rate, point.seed, flight.epochs, point.config.epochs, flight.hash)


def _combinations(needed: Needed, running: set[str]) -> tuple[CombinationStatus, ...]:
    names: dict[tuple[str, ...], list[str]] = {labels: [] for labels in needed.sweep.combinations}
    for name, point in needed.points:
        names[tuple(point.labels.values())].append(name)
    found = []
    for labels, held in names.items():
        outcomes = Counter(needed.rows[name].outcome for name in held if name in needed.rows)
        counts = {outcome: outcomes[outcome] for outcome in OUTCOMES}
        flying = sum(name in running for name in held)
        found.append(CombinationStatus(needed.sweep.named(labels), len(held), counts, flying))
    return tuple(found)
