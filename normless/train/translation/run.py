"""A whole translation run, and the network that it trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from normless.data import TranslationData, stored_byte_pairs
from normless.probes import RideAlong
from normless.train.adam import build_adam
from normless.train.assembly import make_fabric
from normless.train.atomic_write import replaced
from normless.train.checkpoint import restored
from normless.train.decoding.bleu import require_sacrebleu
from normless.train.execution import own_run, train_once
from normless.train.listener import RunListener, all_listeners
from normless.train.measuring import measuring_of
from normless.train.translation.assembly import (
    build_translator,
    example_sentences,
    load_translation_data,
)
from normless.train.translation.config import TranslationConfig
from normless.train.translation.directory import TranslationDirectory
from normless.train.translation.result import TranslationResult, TranslationRow
from normless.train.translation.task import TranslationTask


def train_translation(
    config: TranslationConfig,
    directory: Path | str,
    *,
    resume: bool = True,
    on_epoch: Callable[[TranslationRow], None] | None = None,
    listeners: Sequence[RunListener[TranslationRow, TranslationResult]] = (),
    ride_along: RideAlong | None = None,
) -> TranslationResult:
    """Carry out a translation run in a directory and return how it ended.

    As `normless.train.train` it goes on behind its last finished epoch, on the CPU bit for bit; a finished run
    is not trained again, divergence is a result, and the caller's random state is left as it was.

    Args:
        config: what to train.
        directory: for the run's files; made if missing.
        resume: go on with what the directory holds; else the files of a run in it are removed first.
        on_epoch: called with the row of every epoch as it is finished.
        listeners: told of starts, steps, epochs and ends.
        ride_along: probes that measure passes of the training; their tables go to `probes/` in the directory.

    Raises:
        RunDirectoryError: the directory holds another run.
        ValueError: the configuration names what does not exist or does not fit together, or cannot be measured.
        DataNotFoundError: the text is not there.
        ModuleNotFoundError: tokenizers or sacrebleu is not installed.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != 1:
        raise ValueError(f"A translation run is one process, and torchrun started {started}; start it without.")
    if ride_along is not None and config.micro_batch_tokens is not None:
        raise ValueError(
            f"Probes measure whole batches, but micro_batch_tokens={config.micro_batch_tokens} passes them in parts; "
            "leave it out for a run that is measured."
        )
    place = TranslationDirectory(Path(directory))
    told = all_listeners(listeners, on_epoch)
    fabric = make_fabric(config, devices=1)
    with own_run(config, fabric, place, resume=resume):
        assemble = partial(_assemble, config, fabric, place, ride_along)
        return train_once(fabric, place, assemble, _begin, told)


def _begin(task: TranslationTask) -> None:
    """Make the directory, with the vocabulary."""
    task.place.begin(task.config)
    with replaced(task.place.vocabulary) as part:
        task.data.vocabulary.save(part)


def _assemble(
    config: TranslationConfig, fabric: Fabric, place: TranslationDirectory, ride_along: RideAlong | None
) -> TranslationTask:
    """Build everything anew from the configuration, and the vocabulary if the run has none yet."""
    require_sacrebleu()
    data = load_translation_data(config, stored_byte_pairs(place.vocabulary))
    total = config.epochs * data.steps_per_epoch(config.batch_tokens)
    if config.warmup_steps >= total:
        raise ValueError(
            f"Expected warmup_steps below the {total} steps of epochs={config.epochs}, got {config.warmup_steps}: "
            "the warm-up is part of the training."
        )
    network = build_translator(config, data).to(fabric.device)
    source, target = example_sentences(config, data)
    inputs = (source.to(fabric.device), target.to(fabric.device))
    optimizer = build_adam(config, network, *inputs)
    wrapped, wrapped_optimizer = fabric.setup(network, optimizer)
    measuring = measuring_of(ride_along, network, inputs, place.probes)
    return TranslationTask(config, fabric, wrapped, wrapped_optimizer, measuring, data, place)


def trained_translator(directory: Path | str) -> tuple[nn.Module, TranslationData]:
    """The network of a run as its last finished epoch left it, on the CPU, in evaluation mode, and its data.

    `normless.train.decoding.translate` translates with them.

    Raises:
        RunDirectoryError: the directory holds no run, or one that finished no epoch.
    """
    place = TranslationDirectory(Path(directory))
    config = place.stored_config()
    place.check_trained()
    data = load_translation_data(config, stored_byte_pairs(place.vocabulary))
    with torch.random.fork_rng(devices=[]):
        network = build_translator(config, data)
    return restored(network, place.checkpoint), data
