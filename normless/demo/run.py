"""One run of the demo, as a worker process executes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from normless.demo.settings import DemoSettings

if TYPE_CHECKING:
    from normless.train import EpochRow


@dataclass(frozen=True)
class DemoRun:
    """One depth with one scheme at one learning rate."""

    settings: DemoSettings
    depth: int
    scheme: str
    rate: float

    def __str__(self) -> str:
        return f"depth {self.depth}, {self.scheme}, rate {self.rate:g}"


@dataclass(frozen=True)
class RunRecord:
    """How far a run has come.

    Attributes:
        run: which it is.
        training_loss: mean of its last epoch (nats); infinite of a run that diverged.
        test_accuracy: 0..1, of the network as it stands.
        seconds_per_epoch: wall time of training an epoch.
    """

    run: DemoRun
    training_loss: float
    test_accuracy: float
    seconds_per_epoch: float

    @property
    def diverged(self) -> bool:
        """Whether a loss was not finite or far too large."""
        return math.isinf(self.training_loss)

    def __str__(self) -> str:
        loss = "diverged" if self.diverged else f"training loss {self.training_loss:.3f}"
        return f"{self.run}: {loss}"


class _EnoughError(Exception):
    """A run has come as far as it was to come."""


def train_run(run: DemoRun, folder: Path, epochs: int) -> RunRecord:
    """Train a network up to an epoch of its budget, going on with what the folder holds of the run.

    Args:
        run: what to train; its schedule is that of the whole budget, however far it is to come.
        folder: of all runs.
        epochs: how many of the budget's are done in the end.
    """
    from normless.train import train

    done: list[EpochRow] = []

    def on_epoch(row: EpochRow) -> None:
        done.append(row)
        # The whole budget ends by itself. An epoch that was told of has been saved.
        if row.epoch == epochs < run.settings.epochs:
            raise _EnoughError

    config = run.settings.config(run.depth, run.scheme, run.rate)
    try:
        result = train(config, folder / f"{run.depth}-{run.scheme}-{run.rate}", on_epoch=on_epoch)
    except _EnoughError:
        return RunRecord(run, done[-1].training_loss, done[-1].test_accuracy, done[-1].seconds)
    loss = math.inf if result.outcome == "diverged" else result.epochs[-1].training_loss
    return RunRecord(run, loss, result.test_accuracy, result.seconds_per_epoch)
