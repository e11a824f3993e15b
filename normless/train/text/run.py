"""A whole text run, and the network that it trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from normless.data import LearnedTokens, TextData, stored_byte_pairs
from normless.probes import RideAlong
from normless.train.adam import build_adam
from normless.train.assembly import make_fabric
from normless.train.atomic_write import replaced
from normless.train.checkpoint import restored
from normless.train.execution import own_run, train_once
from normless.train.listener import RunListener, all_listeners
from normless.train.measuring import check_whole_batches, measuring_of
from normless.train.result import EpochRow
from normless.train.text.assembly import build_classifier, example_sentences, load_text_data
from normless.train.text.config import TextConfig
from normless.train.text.directory import TextDirectory
from normless.train.text.result import TextResult
from normless.train.text.task import TextTask


def train_text(
    config: TextConfig,
    directory: Path | str,
    *,
    resume: bool = True,
    on_epoch: Callable[[EpochRow], None] | None = None,
    listeners: Sequence[RunListener[EpochRow, TextResult]] = (),
    ride_along: RideAlong | None = None,
) -> TextResult:
    """Carry out a text run in a directory and return how it ended.

    As `normless.train.train` it goes on behind its last finished epoch, on the CPU bit for bit; a finished run
    is not trained again, divergence is a result, and the caller's random state is left as it was.

    Args:
        config: what to train.
        directory: for the run's files; made if missing.
        resume: go on with what the directory holds; else the files of a run in it are removed first.
        on_epoch: called with the row of every epoch as it is finished.
        listeners: told of starts, steps, epochs and ends, by the first process alone.
        ride_along: probes that measure passes of the training, in the first process; their tables go to `probes/`.

    Raises:
        RunDirectoryError: the directory holds another run.
        ValueError: the configuration names what does not exist or does not fit together, or cannot be measured.
        DataNotFoundError: the text is not there.
        ModuleNotFoundError: transformers or tokenizers is not installed.
    """
    if ride_along is not None:
        check_whole_batches(config)
    place = TextDirectory(Path(directory))
    told = all_listeners(listeners, on_epoch)
    fabric = make_fabric(config, config.devices)
    if not fabric.is_global_zero:
        told, ride_along = [], None
    with own_run(config, fabric, place, resume=resume):
        assemble = partial(_assemble, config, fabric, place, ride_along)
        return train_once(fabric, place, assemble, partial(_begin, place), told)


def _begin(place: TextDirectory, task: TextTask) -> None:
    """Make the directory, with the vocabulary if it was learned."""
    place.begin(task.config)
    if isinstance(task.data.tokens, LearnedTokens):
        with replaced(place.vocabulary) as part:
            task.data.tokens.pieces.save(part)


def _assemble(config: TextConfig, fabric: Fabric, place: TextDirectory, ride_along: RideAlong | None) -> TextTask:
    """Build everything anew from the configuration, and the vocabulary if the run has none yet."""
    data = load_text_data(config, stored_byte_pairs(place.vocabulary))
    network = build_classifier(config, data).to(fabric.device)
    inputs = example_sentences(config, data).to(fabric.device)
    optimizer = build_adam(config, network, inputs)
    wrapped, wrapped_optimizer = fabric.setup(network, optimizer)
    measuring = measuring_of(ride_along, network, (inputs,), place.probes)
    return TextTask(config, fabric, wrapped, wrapped_optimizer, measuring, data)


def trained_text_classifier(directory: Path | str) -> tuple[nn.Module, TextData]:
    """The network of a run as its last finished epoch left it, on the CPU, in evaluation mode, and its data.

    Raises:
        RunDirectoryError: the directory holds no run, or one that finished no epoch.
    """
    place = TextDirectory(Path(directory))
    config = place.stored_config()
    place.check_trained()
    data = load_text_data(config, stored_byte_pairs(place.vocabulary))
    with torch.random.fork_rng(devices=[]):
        network = build_classifier(config, data)
    return restored(network, place.checkpoint), data
