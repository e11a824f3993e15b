"""One training run: its configuration, the loop, what it leaves behind, and how it ended.

The names below are imported on first use, so that the command line can show its help without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from normless.lazy import lazy_names

if TYPE_CHECKING:
    from normless.training.assembly import trained_network as trained_network
    from normless.training.config import TrainConfig as TrainConfig
    from normless.training.directory import RunDirectoryError as RunDirectoryError
    from normless.training.listener import RunListener as RunListener
    from normless.training.outcome import Outcome as Outcome
    from normless.training.progress import ProgressBar as ProgressBar
    from normless.training.result import EpochRow as EpochRow
    from normless.training.result import RunResult as RunResult
    from normless.training.run import train as train

_HOME = {
    "EpochRow": "normless.training.result",
    "Outcome": "normless.training.outcome",
    "ProgressBar": "normless.training.progress",
    "RunDirectoryError": "normless.training.directory",
    "RunListener": "normless.training.listener",
    "RunResult": "normless.training.result",
    "TrainConfig": "normless.training.config",
    "train": "normless.training.run",
    "trained_network": "normless.training.assembly",
}

__all__ = list(_HOME)


__getattr__, __dir__ = lazy_names(__name__, _HOME)
