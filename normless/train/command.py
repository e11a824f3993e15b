"""``normless train``: one run, from YAML and flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.train.config import TrainConfig
from normless.train.flags import (
    add_run_arguments,
    config_of,
    directory_named,
    outcome_in_words,
    run_with_progress,
)

if TYPE_CHECKING:
    from normless.train.result import RunResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add a flag for every field of `TrainConfig`, the YAML file that may set them, and where the run goes."""
    add_run_arguments(parser, TrainConfig, "runs/DATA-SCHEME-HASH")


def run(namespace: Namespace) -> int:
    """Carry out the run that the arguments describe; prints its result. Every outcome is a success."""
    config = config_of(namespace, TrainConfig)
    from normless.train.run import train

    directory = namespace.out or default_directory(config)
    run_with_progress(namespace, train, config, directory, _in_words)
    return 0


def default_directory(config: TrainConfig) -> Path:
    """`runs/DATA-SCHEME-HASH`: the same settings find the same run again."""
    from normless.train.pretrained import applied_scheme, is_saved

    scheme = applied_scheme(config) if is_saved(config.model) else config.scheme
    return directory_named(config.data, scheme, config)


def _in_words(config: TrainConfig, result: RunResult) -> dict[str, str]:
    """The result for a person."""
    from normless.train.pretrained import applied_scheme

    rows = {
        "network": f"{config.model} with {applied_scheme(config)}",
        "data": result.data,
        "outcome": outcome_in_words(result),
        "test accuracy": f"{result.test_accuracy:.2%} (the best constant guess: {result.chance_accuracy:.2%})",
    }
    if result.test_accuracy_top5 is not None:
        rows["among the top five"] = f"{result.test_accuracy_top5:.2%}"
    if result.epochs:
        last = result.epochs[-1]
        rows["training loss"] = f"{last.training_loss:.4f}, with the L2 term {last.training_loss_with_l2:.4f}"
    rows["epochs"] = f"{len(result.epochs)}, {result.seconds_per_epoch:.2f} s each"
    return rows
