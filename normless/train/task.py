"""What a kind of training has of its own: its batches, what a step minimizes, and what is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.train.measuring import Measuring
from normless.train.plateau import has_plateaued
from normless.train.report import Report, Row
from normless.train.settings import Settings

Config = TypeVar("Config", bound=Settings)
SomeRow = TypeVar("SomeRow", bound=Row)
Result = TypeVar("Result", bound=Report)


class StepStatistics(NamedTuple):
    """Of one batch, on its device and not waited for: mean loss (nats) and share of right answers, both scalar."""

    loss: Tensor
    accuracy: Tensor


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


@dataclass(frozen=True)
class Task(ABC, Generic[Config, SomeRow, Result]):
    """A network to train by a configuration; network and optimizer are those that `fabric` set up.

    `measuring`, where there is one, lets probes ride along.
    """

    config: Config
    fabric: Fabric
    network: nn.Module
    optimizer: Optimizer
    measuring: Measuring | None

    def measured(self, step: int, targets: Tensor) -> AbstractContextManager[None]:
        """Let probes that ride along watch the pass in the body; steps are counted from 1."""
        return nullcontext() if self.measuring is None else self.measuring.during(step, targets)

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch, counted from 0: a pure function of the configuration and the epoch."""

    @abstractmethod
    def rate(self, done: int) -> float:
        """The learning rate of the step that follows `done` steps, before the groups' multipliers."""

    @abstractmethod
    def gradients(self, batch: Any, step: int) -> StepStatistics:
        """Add the gradient of the batch's loss to the parameters' gradients; steps are counted from 1."""

    @abstractmethod
    def clip(self) -> None:
        """Limit the gradients, if the configuration says so."""

    @abstractmethod
    def row(self, epoch: int, training: EpochTraining) -> SomeRow:
        """Evaluate the network, and report an epoch that is finished, counted from 1."""

    @abstractmethod
    def result(self, rows: Sequence[SomeRow], steps: int, diverged: EpochTraining | None) -> Result:
        """What became of the run after these epochs and steps; a diverged network is tested as it stands."""

    def course(self, rows: Sequence[SomeRow], steps: int, diverged: EpochTraining | None) -> dict[str, Any]:
        """The fields that the results of all kinds of runs have; arguments as in `result`."""
        if rows:
            seconds = sum(row.seconds for row in rows) / len(rows)
        else:
            assert diverged is not None
            seconds = diverged.seconds / len(diverged.losses) * self.steps_per_epoch
        return {
            "seconds_per_epoch": seconds,
            "steps": steps,
            "parameters": sum(p.numel() for p in self.network.parameters() if p.requires_grad),
            "diverged_epoch": None if diverged is None else len(rows) + 1,
            "diverged_step": None if diverged is None else steps,
            "plateaued": None if diverged is not None else has_plateaued([row.training_loss for row in rows]),
            "config_hash": self.config.hash,
            "epochs": tuple(rows),
        }
