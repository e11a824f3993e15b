"""The folders of the runs in flight: which of them a process works in, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = "lock"
EPOCHS = "epochs.parquet"


@dataclass(frozen=True)
class Flight:
    """A run that is not finished.

    Attributes:
        hash: of its configuration.
        running: whether a process works on it now; else it was interrupted.
        epochs: finished ones; of a run that trains anew with more epochs, those of its last training.
    """

    hash: str
    running: bool
    epochs: int


def flight_in(folder: Path) -> Flight:
    """What the folder of a run tells."""
    return Flight(folder.name, is_held(folder), finished_epochs(folder))


def is_held(folder: Path) -> bool:
    """Whether a process works in the folder of a run."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def finished_epochs(folder: Path) -> int:
    """How many epochs the curves in the folder of a run have."""
    import pyarrow.parquet

    curves = [path for path in (folder / EPOCHS, *folder.glob(f"epochs-*/{EPOCHS}")) if path.exists()]
    if not curves:
        return 0
    try:
        last = max(curves, key=lambda path: path.stat().st_mtime)
        return int(pyarrow.parquet.read_metadata(last).num_rows)
    except (OSError, ValueError):
        # The run ended and its folder with it.
        return 0
