"""A whole run of any kind: start or resume, train epoch by epoch, save each epoch, and return a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from normless.code_names import names_of_data
from normless.exclusive import exclusive
from normless.models import with_random_weights
from normless.probes import RideAlong
from normless.state import preserve_random_state
from normless_lab.train._config import Result, RunConfig, TrainConfig
from normless_lab.train._directory import RunDirectory, RunDirectoryError
from normless_lab.train._execution import arithmetic, denormals_flushed, device_name
from normless_lab.train._fabric import Fabric
from normless_lab.train._image_task import ImageTask
from normless_lab.train._loggers import Logger, loggers_of
from normless_lab.train._loop import Training, assemble, check_measurable, make_fabric, train_epoch
from normless_lab.train._pauses import Pauses
from normless_lab.train._result import TrainingResult, has_plateaued
from normless_lab.train._run_files import (
    Curves,
    intact_checkpoint,
    load_checkpoint,
    load_weights,
    readable,
    save_checkpoint,
    whole_weights,
)
from normless_lab.train._run_listener import LiveFiles, RunListener, RunLogger, RunStart
from normless_lab.train._settings import Settings
from normless_lab.train._task import TASKS, EpochTraining, Task
from normless_lab.train._turns import GlobalState, current_turn

TASKS.register(TrainConfig.TASK)(ImageTask)


class Options(TypedDict, total=False):
    """How a run is executed.

    Attributes:
        resume: resume the run in the directory, the default; if False, an existing run is moved to the folder
            `former` when the new run begins.
        listeners: notified of starts, steps, epochs and ends, only in the first process.
        ride_along: probes that measure passes of the training, in the first process; their tables are written to
            `probes/` in the directory, a file per epoch. Weights and results of the run do not change. The run has
            checkpoints only at the ends of epochs.
        time_limit: duration, such as 90s, 10m or 1.5h, after which the run is saved and stopped.
        checkpoint_every: steps or a duration, such as 500 or 10m, between two checkpoints within an epoch.
        lengthen: continue a run of fewer epochs, even if the schedule depends on their number.
        watch: watch the training by `nl.watch`, which warns of problems and takes some time at each step; its
            findings are written to `findings.json` in the directory. Weights and results do not change.
        logger: the name of a logger, as tensorboard, the default, csv or MODULE:NAME, or an object with the methods
            of Lightning Fabric's loggers, or several; see `RunLogger`.
    """

    resume: bool
    listeners: Sequence[RunListener]
    ride_along: RideAlong | None
    time_limit: str | None
    checkpoint_every: str | None
    lengthen: bool
    watch: bool
    logger: str | Logger | Sequence[str | Logger] | None


def train(config: RunConfig[Result], directory: Path | str, **options: Unpack[Options]) -> Result:
    """Execute a run in a directory and return its result.

    An interrupted run resumes from its last checkpoint; on the CPU it ends with the same weights, bit for bit,
    as an uninterrupted one. A finished run is not trained again: its stored result is returned. Divergence is a
    result and not an error. The caller's random state stays as it is.

    Args:
        config: what to train; it names its task, see `TASKS`.
        directory: for the run's files; made if missing.
        options: see `Options`.

    Raises:
        StoppedError: the run reached its time limit, or received SIGTERM, and was saved.
        RunDirectoryError: the directory holds another run or damaged files, or another process trains in it.
        ValueError: the configuration names something that does not exist, is inconsistent, or cannot be measured.
        DataNotFoundError: the data is not available.
        ModuleNotFoundError: a package for this kind of run is not installed.
    """
    state, pauses, run = _prepared(config, directory, **options)
    if (turn := current_turn()) is not None:
        turn.pauses = pauses
    with denormals_flushed(), pauses.listening(), state.running():
        return run()


@exclusive
def _prepared(
    config: RunConfig[Result], directory: Path | str, **options: Unpack[Options]
) -> tuple[GlobalState, Pauses, Callable[[], Result]]:
    """Return the global state of a run, when it pauses, and the run itself, which has not written anything."""
    ride_along, watch = options.get("ride_along"), options.get("watch", False)
    if ride_along is not None or watch:
        check_measurable(config)
    if ride_along is not None:
        # Several runs may have been given one, whose rows would mix.
        ride_along = replace(ride_along)
    if watch and config.devices > 1:
        raise ValueError(f"A training is watched in one process, got devices={config.devices}; leave watch out.")
    place = _place(directory, type(config))
    fabric = make_fabric(config)
    listeners = [*options.get("listeners", ())]
    if not fabric.is_global_zero:
        listeners, ride_along = [], None
    pauses = Pauses(options.get("time_limit"), options.get("checkpoint_every"))
    loggers = loggers_of(options.get("logger", "tensorboard"))
    once = partial(
        _train_once,
        fabric=fabric,
        listeners=listeners,
        loggers=loggers,
        ride_along=ride_along,
        pauses=pauses,
        watch=watch,
    )
    place.lengthens, place.starts_over = options.get("lengthen", False), not options.get("resume", True)
    dtype = torch.float64 if config.precision == "64-true" else torch.get_default_dtype()
    return GlobalState(fabric.device, dtype), pauses, partial(_run, config, fabric, place, once)


def _run(config: RunConfig, fabric: Fabric, place: RunDirectory, once: Callable[..., Any]) -> Any:
    """Check the directory and execute the run in it; several trainings have folders of their own."""

    def training(attempt: RunConfig) -> Any:
        return once(attempt, place if attempt is config else place.training(config, attempt.epochs))

    try:
        place.check(config)
        result = task_of(type(config)).trainings(config, training)
        if not config.is_one_training and fabric.is_global_zero:
            place.store_result(result)
        return result
    finally:
        place.end()


def _train_once(
    config: RunConfig,
    place: RunDirectory,
    *,
    fabric: Fabric,
    listeners: Sequence[RunListener],
    loggers: Sequence[tuple[str, Callable[..., Logger]]],
    ride_along: RideAlong | None,
    pauses: Pauses,
    watch: bool,
) -> Any:
    """Execute one training or the rest of it; read the result if the training is finished."""
    result = place.stored_result(config)
    if result is None:
        training = assemble(task_of(type(config))(config, place), fabric, ride_along, watch)
        if fabric.is_global_zero:
            place.begin(config, training.task.data.provenance)
            training.task.save_files()
            logged = [RunLogger(place, name, make) for name, make in loggers]
            listeners = [*listeners, LiveFiles(place, training.watch), *logged]
        # Before that, other processes would read the checkpoint of the replaced run.
        fabric.barrier()
        result = _trained(training, listeners, pauses)
        if fabric.is_global_zero:
            place.store_result(result)
        fabric.barrier()
    for listener in listeners:
        listener.on_end(result)
    return result


def _trained(training: Training, listeners: Sequence[RunListener], pauses: Pauses) -> TrainingResult[Any]:
    """Train for the remaining epochs."""
    task, fabric, place = training.task, training.fabric, training.task.directory
    finished, begun = load_checkpoint(fabric, place, training.network, training.optimizer)
    steps = task.steps_per_epoch
    curves = Curves(place, finished=finished, steps_per_epoch=steps, writes=fabric.is_global_zero)
    losses = [*curves.losses, *([] if begun is None else begun["losses"])]
    try:
        for listener in listeners:
            listener.on_start(RunStart(task.config, steps, tuple(curves.rows), tuple(losses)))
        for epoch in range(finished, task.config.epochs):
            trained = train_epoch(training, epoch, listeners, pauses=pauses, begun=begun)
            begun = None
            row = None if trained.diverged is not None else _row(training, epoch + 1, trained)
            curves.add_epoch(trained.losses, row)
            training.write_measurements(epoch + 1)
            if row is None:
                if training.watch is not None and trained.diverged is not None:
                    # Hooks see torch's own optimizer, inside Fabric's.
                    optimizer = getattr(training.optimizer, "optimizer", training.optimizer)
                    step = epoch * steps + trained.diverged + 1
                    training.watch.diverged(step, trained.losses[trained.diverged], optimizer)
                return _result(training, curves, trained)
            save_checkpoint(fabric, place, training.network, training.optimizer, epoch + 1)
            for listener in listeners:
                listener.on_epoch(row)
            if epoch + 1 < task.config.epochs:
                pauses.check(fabric)
        return _result(training, curves, None)
    except BaseException:
        for listener in listeners:
            listener.on_stop()
        raise
    finally:
        training.close()


def _row(training: Training, epoch: int, trained: EpochTraining) -> Any:
    """Return the row of a finished epoch, counted from 1."""
    row: Any = training.task.RESULT.ROW
    with whole_weights(training.module):
        metrics = training.task.epoch_metrics(epoch, trained, training.fabric, training.module)
    return row(
        epoch=epoch,
        rate=trained.lr,
        training_loss=trained.loss,
        training_accuracy=trained.accuracy,
        seconds=trained.seconds,
        **metrics,
    )


def _result(training: Training, curves: Curves, diverged: EpochTraining | None) -> TrainingResult[Any]:
    """Return the result of a finished or diverged training."""
    task, fabric, rows, steps = training.task, training.fabric, curves.rows, len(curves.losses)
    seconds = [row.seconds for row in rows]
    if diverged is not None and not rows:
        seconds = [diverged.seconds / len(diverged.losses) * task.steps_per_epoch]
    with whole_weights(training.module):
        metrics = task.final_metrics(rows, diverged is not None, fabric, training.module)
    return task.RESULT(
        seconds_per_epoch=sum(seconds) / len(seconds),
        steps=steps,
        parameters=sum(p.numel() for p in training.network.parameters() if p.requires_grad),
        diverged_epoch=None if diverged is None else len(rows) + 1,
        diverged_step=None if diverged is None else steps,
        plateaued=None if diverged is not None else has_plateaued([row.training_loss for row in rows]),
        data=task.data.provenance,
        config_hash=task.config.hash,
        epochs=tuple(rows),
        device=device_name(fabric.device),
        arithmetic=arithmetic(task.config.precision, fabric.device),
        graph=training.graph_in_words,
        **metrics,
    )


def check_start(config: Settings, directory: Path | str) -> None:
    """Load the data of a run, then build and convert its network, without writing files.

    Errors are those of `train`. Configurations of other types than `RunConfig` are not checked.
    """
    if isinstance(config, RunConfig):
        kind = type(config)
        with preserve_random_state():
            task_of(kind)(config, _place(directory, kind)).build_network()


def trained_network(
    directory: Path | str, config_type: type[RunConfig] = TrainConfig, *, trust_code: bool = False
) -> nn.Module:
    """Return the network of a run of this type at its last checkpoint, on the CPU, in evaluation mode.

    Code that its `config.yaml` names is executed with `trust_code`, or as by `normless.load`.

    Raises:
        RunDirectoryError: the directory does not contain a run with a checkpoint.
        UntrustedCodeError: the configuration names code that is not trusted.
    """
    return network_and_data(directory, config_type, trust_code=trust_code)[0]


def network_and_data(
    directory: Path | str, config_type: type[RunConfig] = TrainConfig, *, trust_code: bool = False
) -> tuple[nn.Module, Any]:
    """Return the `trained_network` and the data of its task."""
    config = _place(directory, config_type).stored_config()
    network, task = network_and_task(directory, config, trust_code=trust_code)
    return network, task.data


def network_and_task(
    directory: Path | str, config: RunConfig, *, trust_code: bool = False, original: nn.Module | None = None
) -> tuple[nn.Module, Task[Any]]:
    """Return the network of a run at its last checkpoint, and its task; `original` in place of the model it names."""
    place = _place(directory, type(config))
    checkpoint = intact_checkpoint(place)
    if checkpoint is None:
        raise RunDirectoryError(f"The run in {place.path} does not have a checkpoint: it did not finish an epoch.")
    with names_of_data(place.config, trust_code=trust_code), preserve_random_state():
        task = task_of(type(config))(replace(config, model=with_random_weights(config.model)), place)
        if original is not None:
            task.original = lambda: deepcopy(original)  # type: ignore[method-assign]
        network = task.build_network()
    weights = load_weights(checkpoint)
    with readable(checkpoint):
        dtype = next((weights[name].dtype for name, _ in network.named_parameters()), None)
        network.to(dtype).load_state_dict(weights)
    return network.eval(), task


def _place(directory: Path | str, config_type: type[RunConfig]) -> RunDirectory:
    task = task_of(config_type)
    return RunDirectory(Path(directory), config_type, task.RESULT, task.FILES)


def task_of(config_type: type[RunConfig]) -> type[Task[Any]]:
    """Return the task of a type of configurations; a TypeError for a type that is not a `RunConfig`."""
    if not issubclass(config_type, RunConfig):
        raise TypeError(f"Expected a RunConfig, such as TrainConfig, to train by, got a {config_type.__name__}.")
    return TASKS.find(config_type.TASK)
