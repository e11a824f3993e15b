"""The status of a sweep, from the table of finished runs and the folders of those in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normless.sweeps.laboratory import Laboratory
from normless.sweeps.pending import NeededRuns, needed_runs
from normless.sweeps.runs import OUTCOMES, RunOutcome
from normless.sweeps.sweep import Sweep
from normless.sweeps.worker import finished_epochs, is_locked


@dataclass(frozen=True)
class CombinationStatus:
    """Of a combination of labels: the number of runs, those finished by outcome, and those in flight."""

    labels: Mapping[str, str]
    wanted: int
    outcomes: Mapping[RunOutcome, int]
    running: int

    @property
    def finished(self) -> int:
        """Runs with a row, failed ones included."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class RunningStatus:
    """A run in flight, and how many of its epochs are finished."""

    labels: Mapping[str, str]
    rate: float
    seed: int
    epochs: int
    of: int
    hash: str


@dataclass(frozen=True)
class SweepStatus:
    """The status of a sweep.

    Attributes:
        name: of the sweep.
        combinations: in the order of the sweep.
        running: runs that a process works on; those of other machines only if the folder is shared.
        interrupted: number of runs that have begun and that no process works on.
        errors: of failed runs, the most frequent first, with their numbers.
    """

    name: str
    combinations: tuple[CombinationStatus, ...]
    running: tuple[RunningStatus, ...]
    interrupted: int
    errors: tuple[tuple[str, int], ...]

    @property
    def wanted(self) -> int:
        """Runs needed so far; extensions of the learning rates may add some."""
        return sum(one.wanted for one in self.combinations)

    @property
    def finished(self) -> int:
        """Runs with a row."""
        return sum(one.finished for one in self.combinations)

    @property
    def outcomes(self) -> dict[RunOutcome, int]:
        """Finished runs by outcome."""
        return {outcome: sum(one.outcomes[outcome] for one in self.combinations) for outcome in OUTCOMES}

    def to_dict(self) -> dict[str, Any]:
        """The output of ``normless sweep status --json``."""
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
    """The status of a sweep now.

    Args:
        lab: that carries it out.
        sweep: the sweep.
        metrics: whose optima extend the learning rates.

    Raises:
        StateError: the table cannot be read.
    """
    needed = needed_runs(sweep, metrics, lab.state.read)
    missing = needed.missing
    folders = [folder for name in missing if (folder := lab.work / name).is_dir()]
    running = []
    for folder in folders:
        if is_locked(folder):
            point, epochs = missing[folder.name], finished_epochs(folder)
            running.append(
                RunningStatus(point.labels, point.rate, point.seed, epochs, point.config.epochs, folder.name)
            )
    errors = Counter(row.error for row in needed.rows.values() if row.error is not None)
    return SweepStatus(
        name=sweep.name,
        combinations=_combinations(needed, {run.hash for run in running}),
        running=tuple(running),
        interrupted=len(folders) - len(running),
        errors=tuple(errors.most_common()),
    )


def _combinations(needed: NeededRuns, running: set[str]) -> tuple[CombinationStatus, ...]:
    hashes: dict[tuple[str, ...], list[str]] = {labels: [] for labels in needed.sweep.combinations}
    for name, point in needed.points:
        hashes[tuple(point.labels.values())].append(name)
    combinations = []
    for labels, names in hashes.items():
        outcomes = Counter(needed.rows[name].outcome for name in names if name in needed.rows)
        counts = {outcome: outcomes[outcome] for outcome in OUTCOMES}
        in_flight = sum(name in running for name in names)
        combinations.append(CombinationStatus(needed.sweep.named(labels), len(names), counts, in_flight))
    return tuple(combinations)
