"""The status of a sweep, from the table of finished runs and the folders of others, and unreferenced rows."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normless_lab.sweeps._laboratory import Laboratory
from normless_lab.sweeps._result_tables import NeededRuns, needed_runs
from normless_lab.sweeps._runs import LOCK, OUTCOMES, RunOutcome, RunRow, finished_epochs, is_locked
from normless_lab.sweeps._sweep import Sweep
from normless_lab.train import Settings

# The hash of a run, which names its folder.
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class CombinationStatus:
    """The number of runs of a combination of labels, the finished ones by outcome, and the running ones."""

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
    """A running run, and the number of its finished epochs."""

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
        interrupted: number of runs that have begun but that processes do not work on.
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
        return sum(combination.wanted for combination in self.combinations)

    @property
    def finished(self) -> int:
        """Runs with a row."""
        return sum(combination.finished for combination in self.combinations)

    @property
    def outcomes(self) -> dict[RunOutcome, int]:
        """Finished runs by outcome."""
        return {
            outcome: sum(combination.outcomes[outcome] for combination in self.combinations) for outcome in OUTCOMES
        }

    def to_dict(self) -> dict[str, Any]:
        """The output of ``normless sweep status --json``."""
        return {
            "name": self.name,
            "wanted": self.wanted,
            "finished": self.finished,
            "outcomes": self.outcomes,
            "combinations": [
                vars(combination) | {"finished": combination.finished} for combination in self.combinations
            ],
            "running": [vars(run) for run in self.running],
            "interrupted": self.interrupted,
            "errors": [{"error": error, "runs": runs} for error, runs in self.errors],
        }


def sweep_status(lab: Laboratory, sweep: Sweep, metrics: Sequence[str]) -> SweepStatus:
    """Return the current status of a sweep; the optima of the metrics extend its learning rates."""
    needed = needed_runs(sweep, metrics, lab.state.read)
    begun = [(point, folder) for name, point in needed.missing.items() if (folder := lab.work / name).is_dir()]
    running = tuple(
        RunningStatus(point.labels, point.rate, point.seed, finished_epochs(folder), point.config.epochs, folder.name)
        for point, folder in begun
        if is_locked(folder)
    )
    errors = Counter(row.error for row in needed.rows.values() if row.error is not None)
    combinations = _combinations(needed, {run.hash for run in running})
    interrupted = len(begun) - len(running)
    return SweepStatus(sweep.name, combinations, running, interrupted, tuple(errors.most_common()))


def _combinations(needed: NeededRuns, running: set[str]) -> tuple[CombinationStatus, ...]:
    """Return the status of each combination; `running` are hashes."""
    hashes: dict[tuple[str, ...], list[str]] = {labels: [] for labels in needed.sweep.combinations}
    for name, point in needed.points:
        hashes[tuple(point.labels.values())].append(name)
    combinations = []
    for labels, names in hashes.items():
        outcomes = Counter(needed.rows[name].outcome for name in names if name in needed.rows)
        counts = {outcome: outcomes[outcome] for outcome in OUTCOMES}
        in_flight = len(running.intersection(names))
        combinations.append(CombinationStatus(needed.sweep.named(labels), len(names), counts, in_flight))
    return tuple(combinations)


@dataclass(frozen=True)
class Prunable:
    """The rows, by hash, and the folders of unfinished runs and of weights that can be deleted."""

    rows: tuple[str, ...]
    folders: tuple[Path, ...]


def prunable(lab: Laboratory, sweeps: Sequence[Sweep], metrics: Sequence[str]) -> Prunable:
    """Return the rows and folders that none of the sweeps references.

    A row belongs to a sweep if its settings do, for any learning rate, because it may belong to an extension. Weights
    belong to the sweeps with `keep_weights`. A folder in use by a process is never prunable.

    The optima of the metrics extend the sweeps' learning rates.
    """
    referenced: set[str] = set()
    in_flight: set[str] = set()
    weights: set[str] = set()
    for sweep in sweeps:
        needed = needed_runs(sweep, metrics, lab.state.read)
        referenced |= {_without_rate(point.config) for _, point in needed.points}
        in_flight |= set(needed.missing) | {name for name, row in needed.rows.items() if row.outcome == "failed"}
        weights |= {name for name, _ in needed.points if sweep.keep_weights}
    rows = lab.state.read(lab.state.hashes())
    unreferenced = tuple(name for name, row in rows.items() if _key(row) not in referenced)
    folders = [
        path
        for place, names in ((lab.work, in_flight), (lab.kept, weights))
        for path in _folders_of_runs(place)
        if path.name not in names and not is_locked(path)
    ]
    return Prunable(unreferenced, tuple(folders))


def _folders_of_runs(place: Path) -> list[Path]:
    """Return the folders in a folder that a run made: real ones, named by its hash, with its lock.

    A folder that is a link, or in one, belongs to somebody else.
    """
    if place.is_symlink() or not place.is_dir():
        return []
    named = (path for path in sorted(place.iterdir()) if _HASH.fullmatch(path.name) and not path.is_symlink())
    return [path for path in named if (path / LOCK).is_file() and not (path / LOCK).is_symlink()]


def prune(lab: Laboratory, unreferenced: Prunable) -> None:
    """Delete the rows and folders of `prunable`; a folder that was replaced by a link meanwhile stays."""
    lab.state.remove(unreferenced.rows)
    for folder in unreferenced.folders:
        with suppress(OSError):
            parent = os.open(folder.parent, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                shutil.rmtree(folder.name, dir_fd=parent)
            finally:
                os.close(parent)


def _key(row: RunRow) -> str | None:
    """Return `_without_rate` of a row; None if its configuration is no longer valid."""
    try:
        return _without_rate(row.settings())
    except ValueError:
        return None


def _without_rate(config: Settings) -> str:
    """Return the settings that identify a run, except its learning rate."""
    identity = {name: value for name, value in config.identity().items() if name != "rate"}
    return json.dumps([config.KIND, identity], sort_keys=True)
