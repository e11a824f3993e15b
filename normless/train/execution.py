"""From the pieces of a run to its result: epochs, their files and listeners, whatever it is that is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric

from normless.train.checkpoint import load_checkpoint, save_checkpoint
from normless.train.curves import Curves
from normless.train.denormals import denormals_flushed
from normless.train.directory import Config, Directory, Result
from normless.train.listener import RunListener, RunStart
from normless.train.loop import train_epoch
from normless.train.task import SomeRow, Task

SomeTask = TypeVar("SomeTask", bound=Task[Any, Any, Any])


@contextmanager
def own_run(config: Config, fabric: Fabric, place: Directory[Config, Any], *, resume: bool) -> Iterator[None]:
    """See that the directory is this run's, or else clear it, and let the run have its own random state.

    Denormal numbers are 0 in it. The caller's generators, and the type of numbers torch makes, are as they were
    behind the body.

    Raises:
        RunDirectoryError: the directory holds another run.
    """
    if resume:
        place.check(config)
    elif fabric.is_global_zero:
        place.clear()
    fabric.barrier()
    before = torch.get_default_dtype()
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), denormals_flushed():
        if config.precision == "64-true":
            torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def train_once(
    fabric: Fabric,
    place: Directory[Any, Result],
    assemble: Callable[[], SomeTask],
    begin: Callable[[SomeTask], None],
    listeners: Sequence[RunListener[Any, Any]],
) -> Result:
    """Carry out one training, or what is left of it; the result of a finished one is read again.

    Args:
        fabric: that runs the training.
        place: the run's directory.
        assemble: builds all that is trained.
        begin: makes the directory, in the first process; called with all that could be built.
        listeners: told of starts, steps, epochs and ends.
    """
    result = place.stored_result()
    if result is None:
        task = assemble()
        if fabric.is_global_zero:
            begin(task)
        result = _trained(task, place, listeners)
        if fabric.is_global_zero:
            place.store_result(result)
        fabric.barrier()
    for listener in listeners:
        listener.on_end(result)
    return result


def _trained(
    task: Task[Any, SomeRow, Result], place: Directory[Any, Result], listeners: Sequence[RunListener[Any, Any]]
) -> Result:
    """Go through the epochs that are left."""
    config, fabric, measuring = task.config, task.fabric, task.measuring
    finished = load_checkpoint(fabric, place.checkpoint, task.network, task.optimizer)
    kind: Any = place.RESULT.ROW
    steps = task.steps_per_epoch
    curves: Curves[SomeRow] = Curves(
        place, kind, finished=finished, steps_per_epoch=steps, writes=fabric.is_global_zero
    )
    for listener in listeners:
        listener.on_start(RunStart(config, steps, tuple(curves.rows)))
    try:
        for epoch in range(finished, config.epochs):
            training = train_epoch(task, epoch, listeners)
            curves.add_losses(training.losses)
            if training.diverged is not None:
                curves.write()
                if measuring is not None:
                    measuring.write(epoch + 1)
                return task.result(curves.rows, len(curves.losses), training)
            row = task.row(epoch + 1, training)
            curves.add_epoch(row)
            curves.write()
            if measuring is not None:
                measuring.write(epoch + 1)
            save_checkpoint(fabric, place.checkpoint, task.network, task.optimizer, epoch + 1)
            for listener in listeners:
                listener.on_epoch(row)
        return task.result(curves.rows, len(curves.losses), None)
    finally:
        curves.close()
