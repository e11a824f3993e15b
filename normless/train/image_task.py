"""The training of a network on images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from normless.data import Augmentation, Batch, ImageData
from normless.optim import adaptive_gradient_clipping, rate_multiplier
from normless.train.classification import ClassificationTask
from normless.train.config import TrainConfig
from normless.train.result import EpochRow, RunResult
from normless.train.task import EpochTraining


@dataclass(frozen=True)
class ImageTask(ClassificationTask[TrainConfig, RunResult]):
    """A network that tells the classes of images; `clipped` are the parameters whose gradients are."""

    data: ImageData
    augmentation: Augmentation
    clipped: tuple[nn.Parameter, ...]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return self.data.steps_per_epoch(self.config.batch_size)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This process's parts of the batches of an epoch, counted from 0."""
        return self.data.train_batches(
            self.config.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            augmentation=self.augmentation,
            device=self.fabric.device,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
        )

    def rate(self, done: int) -> float:
        """The learning rate of the step that follows `done` steps, before the groups' multipliers."""
        config, per_epoch = self.config, self.steps_per_epoch
        if done < config.warm_start_epochs * per_epoch:
            return config.warm_start_rate
        return config.rate * rate_multiplier(
            config.schedule, done, config.epochs * per_epoch, warmup=config.warmup_epochs * per_epoch
        )

    def clip(self) -> None:
        """Limit the gradients relative to the weights, if the configuration says so."""
        if self.config.clip is not None:
            adaptive_gradient_clipping(self.clipped, self.config.clip)

    def result(self, rows: Sequence[EpochRow], steps: int, diverged: EpochTraining | None) -> RunResult:
        """What became of the run."""
        return RunResult(
            doublings=0,
            data=self.data.provenance,
            **self.final(rows, diverged),
            **self.course(rows, steps, diverged),
        )
