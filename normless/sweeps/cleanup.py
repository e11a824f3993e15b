"""Delete the rows, folders and weights of runs that no sweep references."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normless.sweeps.laboratory import Laboratory
from normless.sweeps.pending import needed_runs
from normless.sweeps.runs import RunRow
from normless.sweeps.sweep import Sweep
from normless.sweeps.worker import is_locked
from normless.train import Settings


@dataclass(frozen=True)
class Prunable:
    """What can be deleted: rows, by hash, and folders of unfinished runs and of weights."""

    rows: tuple[str, ...]
    folders: tuple[Path, ...]


def prunable(lab: Laboratory, sweeps: Sequence[Sweep], metrics: Sequence[str]) -> Prunable:
    """The rows and folders that no sweep references.

    A row belongs to a sweep if its settings do, whatever its learning rate: it may be of an extension. Weights belong
    to the sweeps with `keep_weights`. A folder that a process works in is never prunable.

    Args:
        lab: with the table and the folders.
        sweeps: that keep their runs.
        metrics: whose optima extend the learning rates.

    Raises:
        StateError: the table cannot be read.
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
        for path in sorted(place.glob("*"))
        if path.is_dir() and path.name not in names and not is_locked(path)
    ]
    return Prunable(unreferenced, tuple(folders))


def prune(lab: Laboratory, unreferenced: Prunable) -> None:
    """Delete what `prunable` lists."""
    lab.state.remove(unreferenced.rows)
    for folder in unreferenced.folders:
        shutil.rmtree(folder, ignore_errors=True)


def _key(row: RunRow) -> str | None:
    """`_without_rate` of a row; None if its configuration is no longer valid."""
    try:
        return _without_rate(row.settings())
    except ValueError:
        return None


def _without_rate(config: Settings) -> str:
    """The settings that identify a run, except its learning rate."""
    identity = {name: value for name, value in config.identity().items() if name != "rate"}
    return json.dumps([config.COMMAND, identity], sort_keys=True)
