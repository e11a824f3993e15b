"""``normless train-text``: one run that learns to tell classes of sentences, from YAML and flags."""

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
from normless.train.text.config import TextConfig

if TYPE_CHECKING:
    from normless.train.text.result import TextResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add a flag for every field of `TextConfig`, the YAML file that may set them, and where the run goes."""
    add_run_arguments(parser, TextConfig, "runs/DATA-SCHEME-HASH")


def run(namespace: Namespace) -> int:
    """Carry out the run that the arguments describe; prints its result. Every outcome is a success."""
    config = config_of(namespace, TextConfig)
    from normless.train.text.run import train_text

    directory = namespace.out or directory_named(config.data, config.scheme, config)
    run_with_progress(namespace, train_text, config, directory, _in_words)
    return 0


def _in_words(config: TextConfig, result: TextResult) -> dict[str, str]:
    """The result for a person."""
    rows = {
        "network": f"{config.model} with {config.scheme}",
        "data": result.data,
        "outcome": outcome_in_words(result),
        "test accuracy": f"{result.test_accuracy:.2%} (the best constant guess: {result.chance_accuracy:.2%})",
        "test loss": f"{result.test_loss:.4f} nats",
    }
    if result.epochs:
        rows["training loss"] = f"{result.epochs[-1].training_loss:.4f}"
    return rows | {"epochs": f"{len(result.epochs)}, {result.seconds_per_epoch:.2f} s each"}
