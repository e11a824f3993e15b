"""A kind of run for learning-rate searches: the first epoch of a training run, with the schedule of the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from normless_lab.sweeps import Kind
from normless_lab.train import EpochRow, Outcome, Report, RunListener, RunStart, TrainConfig


@dataclass(frozen=True)
class FirstEpochConfig(TrainConfig):
    """The first epochs of a training run; its folder is that of the whole run, interrupted."""

    COMMAND: ClassVar[str] = "normless_lab.demo.first_epoch:FIRST_EPOCH"

    stop_after: int = 1

    def whole(self) -> TrainConfig:
        """The configuration of the whole run."""
        values = self.to_dict()
        del values["stop_after"]
        return TrainConfig.from_dict(values)


@dataclass(frozen=True)
class FirstEpochResult(Report):
    """The state of a run after its first epochs; fields as in `RunResult`."""

    outcome: Outcome
    test_accuracy: float
    seconds_per_epoch: float
    epochs: tuple[EpochRow, ...]


class _StopTrainingError(Exception):
    """Raised to end a training after the epochs that are its argument."""


class _StopAfter(RunListener):
    """Ends the training after an epoch has been saved."""

    def __init__(self, epochs: int) -> None:
        self._rows: list[EpochRow] = []
        self._epochs = epochs

    def on_start(self, start: RunStart) -> None:
        for row in start.finished:
            self.on_epoch(row)

    def on_epoch(self, row: EpochRow) -> None:
        self._rows.append(row)
        if len(self._rows) >= self._epochs:
            raise _StopTrainingError(*self._rows)


def train_first_epoch(config: FirstEpochConfig, directory: Path) -> FirstEpochResult:
    """Train the first epochs of a run in a directory, or resume them."""
    # The process that only plans and reads runs has no use for Fabric.
    from normless_lab.train import train

    try:
        result = train(config.whole(), directory, listeners=[_StopAfter(config.stop_after)])
    except _StopTrainingError as stop:
        last = stop.args[-1]
        return FirstEpochResult("trained", last.test_accuracy, last.seconds, stop.args)
    return FirstEpochResult(result.outcome, result.test_accuracy, result.seconds_per_epoch, result.epochs)


FIRST_EPOCH = Kind(
    "normless_lab.demo.first_epoch:FirstEpochConfig",
    "normless_lab.demo.first_epoch:train_first_epoch",
    "normless_lab.demo.first_epoch:FirstEpochResult",
)
