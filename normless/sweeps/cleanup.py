"""What a laboratory keeps of runs that no sweep asks for any more, and how it is thrown away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normless.sweeps.in_flight import is_held
from normless.sweeps.laboratory import Laboratory
from normless.sweeps.pending import needed_runs
from normless.sweeps.row import RunRow
from normless.sweeps.sweep import Sweep
from normless.train import Settings


@dataclass(frozen=True)
class Prunable:
    """What can go: `rows`, by hash, of runs that no sweep has, and `folders` of runs that none goes on with."""

    rows: tuple[str, ...]
    folders: tuple[Path, ...]


def prunable(lab: Laboratory, sweeps: Sequence[Sweep], metrics: Sequence[str]) -> Prunable:
    """What no sweep needs.

    A row belongs to a sweep if its settings do, whatever its learning rate: it may be of an extension. A folder that
    a process works in never goes.

    Args:
        lab: whose table and folders these are.
        sweeps: that keep their runs.
        metrics: whose optima extend the learning rates.

    Raises:
        StateError: the table cannot be read.
    """
    kept: set[str] = set()
    needed: set[str] = set()
    for sweep in sweeps:
        found = needed_runs(sweep, metrics, lab.state.read)
        kept |= {_without_rate(point.config) for _, point in found.points}
        needed |= set(found.missing) | {name for name, row in found.rows.items() if row.outcome == "failed"}
    rows = lab.state.read(lab.state.hashes())
    gone = tuple(name for name, row in rows.items() if _key(row) not in kept)
    folders = sorted(path for path in lab.work.glob("*") if path.is_dir() and path.name not in needed)
    return Prunable(gone, tuple(path for path in folders if not is_held(path)))


def prune(lab: Laboratory, found: Prunable) -> None:
    """Throw it away."""
    lab.state.remove(found.rows)
    for folder in found.folders:
        shutil.rmtree(folder, ignore_errors=True)


def _key(row: RunRow) -> str | None:
    """As `_without_rate`; None of a run that could not be asked for any more."""
    try:
        return _without_rate(row.settings())
    except ValueError:
        return None


def _without_rate(config: Settings) -> str:
    """What decides a run besides its learning rate."""
    identity = {name: value for name, value in config.identity().items() if name != "rate"}
    return json.dumps([config.COMMAND, identity], sort_keys=True)
