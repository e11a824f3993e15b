"""One epoch of training: a pure function of the weights, the optimizer's state, the seed and the epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from normless.divergence import first_diverged
from normless.train.assembly import Training
from normless.train.objective import l2_term, mean_metric, mean_of_processes
from normless.train.run_listener import RunListener
from normless.train.schedules import set_rate
from normless.train.task import EpochTraining, StepStatistics

# On an accelerator, reading losses waits for all work in flight, so they are read together.
STEPS_BETWEEN_READS = 25


def seed_epoch(seed: int, epoch: int, rank: int) -> None:
    """Seed torch's generators, which dropout draws from, for an epoch (from 0) of a process."""
    torch.manual_seed(int(np.random.SeedSequence((seed, epoch, rank)).generate_state(1, np.uint64)[0] >> 1))


def train_epoch(training: Training, epoch: int, listeners: Sequence[RunListener[Any, Any]] = ()) -> EpochTraining:
    """Train for one epoch, counted from 0; ends early at the first loss that diverged.

    On the CPU a loss is read before its step; on an accelerator, and between processes, after up to
    `STEPS_BETWEEN_READS` steps, and the steps that followed a diverged loss are then left out.
    """
    task, fabric = training.task, training.fabric
    seed_epoch(task.config.seed, epoch, fabric.global_rank)
    training.network.train()
    at_once = fabric.device.type == "cpu" and fabric.world_size == 1
    record = _Record(fabric, first_step=epoch * task.steps_per_epoch + 1, listeners=listeners)
    start = time.perf_counter()
    for index, batch in enumerate(task.batches(epoch, fabric)):
        done = epoch * task.steps_per_epoch + index
        record.result.lr = task.lr(done)
        set_rate(training.optimizer, record.result.lr)
        training.optimizer.zero_grad()
        record.add(training.gradients(batch, done + 1), l2_term(training.optimizer))
        if (at_once or (index + 1) % STEPS_BETWEEN_READS == 0) and record.read():
            break
        task.clip(training.clipped)
        training.optimizer.step()
    if record.result.diverged is None and not record.read():
        record.average()
    record.result.seconds = time.perf_counter() - start
    return record.result


class _Record:
    """Collects the steps of an epoch on the device and reads them on demand."""

    def __init__(self, fabric: Fabric, *, first_step: int, listeners: Sequence[RunListener[Any, Any]]) -> None:
        self._fabric = fabric
        self._first_step = first_step
        self._listeners = listeners
        self._losses: list[Tensor] = []
        self._l2: list[Tensor] = []
        self._accuracies: list[Tensor] = []
        self.result = EpochTraining()

    def add(self, statistics: StepStatistics, l2: Tensor) -> None:
        """A step of this process, without synchronization."""
        self._losses.append(statistics.loss)
        self._accuracies.append(statistics.accuracy)
        self._l2.append(l2)

    def read(self) -> bool:
        """Read the new losses, as means over all processes; whether one of them has diverged."""
        losses = self.result.losses
        unseen = self._losses[len(losses) :]
        if not unseen:
            return False
        values: list[float] = mean_of_processes(self._fabric, torch.stack(unseen)).tolist()
        diverged = first_diverged(values)
        if diverged is not None:
            self.result.diverged = len(losses) + diverged
            values = values[: diverged + 1]
        for step, loss in enumerate(values, self._first_step + len(losses)):
            for listener in self._listeners:
                listener.on_step(step, loss)
        losses.extend(values)
        return diverged is not None

    def average(self) -> None:
        """Take the means over the epoch's steps."""
        losses = torch.stack(self._losses)
        l2 = torch.stack(self._l2).to(losses.device)
        self.result.loss = self._mean(losses)
        self.result.loss_with_l2 = self._mean(losses + l2)
        self.result.accuracy = self._mean(torch.stack(self._accuracies))

    def _mean(self, values: Tensor) -> float:
        metric = mean_metric(self._fabric)
        metric.update(values)
        return float(metric.compute())
