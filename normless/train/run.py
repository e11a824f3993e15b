"""A whole run: it starts or goes on, trains epoch by epoch, saves each, and ends with an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from normless.probes import RideAlong
from normless.train.assembly import (
    augmentation_of,
    build_network,
    build_optimizer,
    clipped_parameters,
    example_inputs,
    load_config_data,
    make_fabric,
)
from normless.train.config import TrainConfig
from normless.train.directory import RunDirectory
from normless.train.execution import own_run, train_once
from normless.train.image_task import ImageTask
from normless.train.listener import RunListener, all_listeners
from normless.train.measuring import check_measurable, measuring_of
from normless.train.result import EpochRow, RunResult

ImageListener = RunListener[EpochRow, RunResult]


def train(
    config: TrainConfig,
    directory: Path | str,
    *,
    resume: bool = True,
    on_epoch: Callable[[EpochRow], None] | None = None,
    listeners: Sequence[ImageListener] = (),
    ride_along: RideAlong | None = None,
) -> RunResult:
    """Carry out a run in a directory and return how it ended.

    A run that was interrupted, by whatever means, goes on behind its last finished epoch; on the CPU it ends with
    the weights, bit for bit, of one that was not. A finished run is not trained again: its stored result is
    returned. Divergence is a result and not an error. The caller's random state is left as it was.

    Args:
        config: what to train.
        directory: for the run's files; made if missing.
        resume: go on with what the directory holds; else the files of a run in it are removed first.
        on_epoch: called with the row of every epoch as it is finished.
        listeners: told of starts, steps, epochs and ends, by the first process alone.
        ride_along: probes that measure passes of the training, in the first process; their tables go to `probes/`
            in the directory, a file per epoch. The run's weights and results are those it has without.

    Raises:
        RunDirectoryError: the directory holds another run.
        ValueError: the configuration names what does not exist or does not fit together, or cannot be measured.
    """
    if ride_along is not None:
        check_measurable(config)
    place = RunDirectory(Path(directory))
    told = all_listeners(listeners, on_epoch)
    fabric = make_fabric(config, config.devices)
    if not fabric.is_global_zero:
        told = []
    with own_run(config, fabric, place, resume=resume):
        return _train_until_plateau(config, fabric, place, told, ride_along if fabric.is_global_zero else None)


def _train_until_plateau(
    config: TrainConfig,
    fabric: Fabric,
    place: RunDirectory,
    listeners: Sequence[ImageListener],
    ride_along: RideAlong | None,
) -> RunResult:
    """Train; where the configuration asks for it, anew with twice the epochs until the training loss plateaus."""
    if not config.epochs_until_plateau:
        return _train_once(config, fabric, place, listeners, ride_along, lambda _: place.begin(config))
    for doublings in range(config.max_doublings + 1):
        epochs = config.epochs * 2**doublings
        attempt = replace(config, epochs=epochs, epochs_until_plateau=False)
        inner = RunDirectory(place.path / f"epochs-{epochs}")
        begin = partial(_begin_both, place, config, inner, attempt)
        result = _train_once(attempt, fabric, inner, listeners, ride_along, begin)
        if result.plateaued or result.outcome == "diverged":
            break
    result = replace(result, doublings=doublings, config_hash=config.hash)
    if fabric.is_global_zero:
        place.store_result(result)
    return result


def _begin_both(
    outer: RunDirectory, config: TrainConfig, inner: RunDirectory, attempt: TrainConfig, task: ImageTask
) -> None:
    outer.begin(config)
    inner.begin(attempt)


def _train_once(
    config: TrainConfig,
    fabric: Fabric,
    place: RunDirectory,
    listeners: Sequence[ImageListener],
    ride_along: RideAlong | None,
    begin: Callable[[ImageTask], None],
) -> RunResult:
    """One training with a fixed number of epochs."""
    return train_once(fabric, place, lambda: _assemble(config, fabric, place, ride_along), begin, listeners)


def _assemble(config: TrainConfig, fabric: Fabric, place: RunDirectory, ride_along: RideAlong | None) -> ImageTask:
    """Build everything anew from the configuration."""
    data = load_config_data(config)
    inputs = example_inputs(config, data)
    # Weights and images in channels-last order: a tenth off a step of a deep network on the CPU.
    network = build_network(config, data, inputs).to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs = inputs.to(fabric.device)
    optimizer = build_optimizer(config, network, inputs)
    clipped = clipped_parameters(config, network, inputs)
    forward: Any = torch.compile(network) if config.compile else network
    wrapped, wrapped_optimizer = fabric.setup(forward, optimizer)
    measuring = measuring_of(ride_along, network, (inputs,), place.probes)
    return ImageTask(
        config, fabric, wrapped, wrapped_optimizer, measuring, data, augmentation_of(config, data), clipped
    )
