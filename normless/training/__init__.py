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
    from normless.training.text.config import TextConfig as TextConfig
    from normless.training.text.result import TextResult as TextResult
    from normless.training.text.run import train_text as train_text
    from normless.training.text.run import trained_text_classifier as trained_text_classifier
    from normless.training.translation.config import TranslationConfig as TranslationConfig
    from normless.training.translation.result import TranslationResult as TranslationResult
    from normless.training.translation.result import TranslationRow as TranslationRow
    from normless.training.translation.run import train_translation as train_translation
    from normless.training.translation.run import trained_translator as trained_translator

_HOME = {
    "EpochRow": "normless.training.result",
    "Outcome": "normless.training.outcome",
    "ProgressBar": "normless.training.progress",
    "RunDirectoryError": "normless.training.directory",
    "RunListener": "normless.training.listener",
    "RunResult": "normless.training.result",
    "TextConfig": "normless.training.text.config",
    "TextResult": "normless.training.text.result",
    "TrainConfig": "normless.training.config",
    "TranslationConfig": "normless.training.translation.config",
    "TranslationResult": "normless.training.translation.result",
    "TranslationRow": "normless.training.translation.result",
    "train": "normless.training.run",
    "train_text": "normless.training.text.run",
    "train_translation": "normless.training.translation.run",
    "trained_network": "normless.training.assembly",
    "trained_text_classifier": "normless.training.text.run",
    "trained_translator": "normless.training.translation.run",
}

__all__ = list(_HOME)


__getattr__, __dir__ = lazy_names(__name__, _HOME)
