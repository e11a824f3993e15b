"""A kind of run that trains nothing: what is left is what the laboratory itself costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from normless_lab.sweeps import Kind
from normless_lab.train import EpochRow, Settings
from normless_lab.train._result import Report


@dataclass(frozen=True)
class EmptyConfig(Settings):
    """A run whose result follows from its settings; `group` stands for whatever a sweep varies."""

    KIND: ClassVar[str] = "empty_run:EMPTY"

    group: int = 0
    epochs: int = 10
    rate: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class EmptyResult(Report):
    """A result of the usual size: a row of numbers per epoch."""

    outcome: Any
    test_accuracy: float
    test_loss: float
    epochs: tuple[EpochRow, ...]


def carry_out(config: EmptyConfig, directory: Path) -> EmptyResult:
    """Return at once."""
    distance = abs(math.log2(config.rate / 0.25))
    accuracy = 1 / (1 + distance + 1e-3 * config.seed)
    epochs = tuple(
        EpochRow(epoch, config.rate, distance, accuracy, 0.0, distance, distance, accuracy, None)
        for epoch in range(1, config.epochs + 1)
    )
    return EmptyResult("trained", accuracy, distance, epochs)


EMPTY = Kind("empty_run:EmptyConfig", "empty_run:carry_out", "empty_run:EmptyResult")
