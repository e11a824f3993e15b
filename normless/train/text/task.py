"""The training of a network on sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from normless.data import Batch, TextData
from normless.optim import rate_multiplier
from normless.train.classification import ClassificationTask
from normless.train.result import EpochRow
from normless.train.task import EpochTraining
from normless.train.text.config import TextConfig
from normless.train.text.result import TextResult
from normless.train.versions import versions_of


@dataclass(frozen=True)
class TextTask(ClassificationTask[TextConfig, TextResult]):
    """A network that tells the classes of sentences."""

    data: TextData

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
            device=self.fabric.device,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
        )

    def rate(self, done: int) -> float:
        """The learning rate of the step that follows `done` steps, before the groups' multipliers."""
        config = self.config
        total = config.epochs * self.steps_per_epoch
        return config.rate * rate_multiplier(config.schedule, done, total, warmup=round(config.warmup * total))

    def clip(self) -> None:
        """Limit the norm of the whole gradient, if the configuration says so."""
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)

    def result(self, rows: Sequence[EpochRow], steps: int, diverged: EpochTraining | None) -> TextResult:
        """What became of the run."""
        return TextResult(
            vocabulary=self.data.tokens.size,
            data=self.data.provenance,
            data_checksum=self.data.text.checksum,
            seed=self.config.seed,
            versions=versions_of("numpy", "tokenizers", "transformers"),
            **self.final(rows, diverged),
            **self.course(rows, steps, diverged),
        )
