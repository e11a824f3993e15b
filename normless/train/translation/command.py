"""``normless train-translation``: one run that learns to translate, from YAML and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.train.flags import (
    add_run_arguments,
    config_of,
    directory_named,
    outcome_in_words,
    run_with_progress,
)
from normless.train.translation.config import TranslationConfig

if TYPE_CHECKING:
    from normless.train.translation.result import TranslationResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add a flag for every field of `TranslationConfig`, the YAML file that may set them, and where the run goes."""
    add_run_arguments(parser, TranslationConfig, "runs/DATA-SCHEME-HASH")


def run(namespace: Namespace) -> int:
    """Carry out the run that the arguments describe; prints its result. Every outcome is a success."""
    config = config_of(namespace, TranslationConfig)
    from normless.train.translation.run import train_translation

    directory = namespace.out or directory_named(config.data, config.scheme, config)
    run_with_progress(namespace, train_translation, config, directory, _in_words)
    return 0


def _in_words(config: TranslationConfig, result: TranslationResult) -> dict[str, str]:
    """The result for a person."""
    return {
        "network": f"{config.model} with {config.scheme}",
        "data": result.data,
        "outcome": outcome_in_words(result),
        "test BLEU": f"{result.test_bleu_greedy:.2f} greedy, {result.test_bleu_beam:.2f} by a beam of "
        f"{config.beam_width} ({result.bleu_signature})",
        "test loss": f"{result.test_loss:.4f} nats per token",
        "tokens right": f"{result.test_accuracy:.2%} (the best constant guess: {result.chance_accuracy:.2%})",
        "epochs": f"{len(result.epochs)}, {result.seconds_per_epoch:.2f} s each",
    }
