"""One epoch of training: a pure function of the weights, the optimizer's state, the seed and the epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.data import Augmentation, ImageData
from normless.divergence import first_diverged
from normless.optim import adaptive_gradient_clipping
from normless.optim.schedules import rate_multiplier, set_rate
from normless.training.config import TrainConfig
from normless.training.evaluation import mean_metric
from normless.training.listener import RunListener
from normless.training.measuring import Measuring
from normless.training.objective import BatchStatistics, accumulate_gradients, l2_term

# On an accelerator a look at the losses waits for all work in flight, so they are looked at together.
STEPS_BETWEEN_LOOKS = 25


@dataclass(frozen=True)
class Pieces:
    """What an epoch works on; network and optimizer are those that `fabric` set up, `clipped` as `config` says."""

    config: TrainConfig
    fabric: Fabric
    data: ImageData
    augmentation: Augmentation
    network: nn.Module
    optimizer: Optimizer
    clipped: tuple[nn.Parameter, ...] = ()
    measuring: Measuring | None = None

    def measured(self, step: int, targets: Tensor) -> AbstractContextManager[None]:
        """Let probes that ride along watch the pass in the body; steps are counted from 1."""
        return nullcontext() if self.measuring is None else self.measuring.during(step, targets)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return self.data.steps_per_epoch(self.config.batch_size)


@dataclass
class EpochTraining:
    """What an epoch of training gave: the losses (nats) of its steps, and the means over them.

    `diverged` is the position, from 0, of the first loss that diverged, with which `losses` then ends; the
    means are NaN in that case.
    """

    losses: list[float] = field(default_factory=list)
    loss: float = float("nan")
    loss_with_l2: float = float("nan")
    accuracy: float = float("nan")
    rate: float = 0.0
    seconds: float = 0.0
    diverged: int | None = None


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Start torch's generators, which dropout draws from, anew for an epoch (from 0) of a process."""
    torch.manual_seed(int(np.random.SeedSequence((seed, epoch, rank)).generate_state(1, np.uint64)[0] >> 1))


def train_epoch(pieces: Pieces, epoch: int, listeners: Sequence[RunListener] = ()) -> EpochTraining:
    """Train for one epoch, counted from 0; ends early at the first loss that diverged.

    On the CPU a loss is looked at before its step is made; on an accelerator, and between processes, after
    up to `STEPS_BETWEEN_LOOKS` steps, and what followed a diverged loss is then left out of the record.
    """
    config, fabric = pieces.config, pieces.fabric
    seed_epoch(config.seed, epoch, fabric.global_rank)
    pieces.network.train()
    at_once = fabric.device.type == "cpu" and fabric.world_size == 1
    record = _Record(fabric, first_step=epoch * pieces.steps_per_epoch + 1, listeners=listeners)
    start = time.perf_counter()
    batches = pieces.data.train_batches(
        config.batch_size,
        seed=config.seed,
        epoch=epoch,
        augmentation=pieces.augmentation,
        device=fabric.device,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    examples = 0
    for index, batch in enumerate(batches):
        done = epoch * pieces.steps_per_epoch + index
        record.result.rate = _set_rate(pieces, done)
        pieces.optimizer.zero_grad()
        with pieces.measured(done + 1, batch.targets):
            statistics = accumulate_gradients(
                fabric,
                pieces.network,
                batch,
                micro_batch_size=config.micro_batch_size,
                label_smoothing=config.label_smoothing,
            )
        record.add(statistics, l2_term(pieces.optimizer))
        if (at_once or (index + 1) % STEPS_BETWEEN_LOOKS == 0) and record.look():
            break
        if config.clip is not None:
            adaptive_gradient_clipping(pieces.clipped, config.clip)
        pieces.optimizer.step()
        examples = len(batch.inputs)
    if record.result.diverged is None and not record.look():
        record.average(examples)
    record.result.seconds = time.perf_counter() - start
    return record.result


def _set_rate(pieces: Pieces, done: int) -> float:
    """Set the rate of the step that follows `done` steps, and return it without the groups' multipliers."""
    config, per_epoch = pieces.config, pieces.steps_per_epoch
    multiplier = rate_multiplier(
        config.schedule, done, config.epochs * per_epoch, warmup=config.warmup_epochs * per_epoch
    )
    set_rate(pieces.optimizer, config.rate * multiplier)
    return config.rate * multiplier


class _Record:
    """Collects the steps of an epoch on the device and looks at them when told."""

    def __init__(self, fabric: Fabric, *, first_step: int, listeners: Sequence[RunListener]) -> None:
        self._fabric = fabric
        self._first_step = first_step
        self._listeners = listeners
        self._losses: list[Tensor] = []
        self._l2: list[Tensor] = []
        self._right: list[Tensor] = []
        self.result = EpochTraining()

    def add(self, statistics: BatchStatistics, l2: Tensor) -> None:
        """A step of this process, not waited for."""
        self._losses.append(statistics.loss)
        self._right.append(statistics.right)
        self._l2.append(l2)

    def look(self) -> bool:
        """Read the losses not yet seen, as means over all processes; whether one of them has diverged."""
        losses = self.result.losses
        unseen = self._losses[len(losses) :]
        if not unseen:
            return False
        values: list[float] = self._mean_of_processes(torch.stack(unseen)).tolist()
        diverged = first_diverged(values)
        if diverged is not None:
            self.result.diverged = len(losses) + diverged
            values = values[: diverged + 1]
        for step, loss in enumerate(values, self._first_step + len(losses)):
            for listener in self._listeners:
                listener.on_step(step, loss)
        losses.extend(values)
        return diverged is not None

    def average(self, examples: int) -> None:
        """Take the means over the epoch's steps; `examples` is the number in a batch of this process."""
        losses = torch.stack(self._losses)
        l2 = torch.stack(self._l2).to(losses.device)
        self.result.loss = self._mean(losses)
        self.result.loss_with_l2 = self._mean(losses + l2)
        self.result.accuracy = self._mean(torch.stack(self._right) / examples)

    def _mean(self, values: Tensor) -> float:
        metric = mean_metric(self._fabric)
        metric.update(values)
        return float(metric.compute())

    def _mean_of_processes(self, values: Tensor) -> Tensor:
        if self._fabric.world_size == 1:
            return values
        mean: Tensor = self._fabric.all_reduce(values, reduce_op="mean")  # type: ignore[assignment]
        return mean
