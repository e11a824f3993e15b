"""The kinds of runs on text, for the command line and for sweeps."""

from __future__ import annotations

from normless_lab.sweeps import Kind
from normless_lab.train import TrainCommand
from normless_papers.text.config import TextConfig, TranslationConfig

TRAIN_TEXT, TRAIN_TRANSLATION = TrainCommand(TextConfig), TrainCommand(TranslationConfig)
TEXT = Kind.of_training("normless_papers.text.config:TextConfig", "normless_papers.text.config:TextResult")
TRANSLATION = Kind.of_training(
    "normless_papers.text.config:TranslationConfig",
    "normless_papers.text.config:TranslationResult",
    {"bleu": "test_bleu_beam", "validation_bleu": "validation_bleu", "validation_loss": "validation_loss"},
)
