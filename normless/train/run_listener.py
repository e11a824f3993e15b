"""Callbacks of a run: start, steps, epochs, end; the loop itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from normless.train.result import Report, Row
from normless.train.settings import Settings

Finished = TypeVar("Finished", bound=Row, covariant=True)
# A listener to any row and report is one to those of a specific run too.
SomeRow = TypeVar("SomeRow", bound=Row, contravariant=True)
SomeReport = TypeVar("SomeReport", bound=Report, contravariant=True)


@dataclass(frozen=True)
class RunStart(Generic[Finished]):
    """What is known when training starts.

    Attributes:
        config: of the run.
        steps_per_epoch: optimizer steps in an epoch.
        finished: rows of the epochs done before an interruption; empty for a new run.
    """

    config: Settings
    steps_per_epoch: int
    finished: tuple[Finished, ...]


class RunListener(Generic[SomeRow, SomeReport]):
    """Callbacks of a run, called in its first process alone; override those of interest.

    An exception in a listener ends the run, which can then be resumed from its last finished epoch.
    """

    def on_start(self, start: RunStart[SomeRow]) -> None:
        """Training starts or resumes; with doubled epochs, once for each training."""

    def on_step(self, step: int, loss: float) -> None:
        """The loss (nats) of a step, counted from 1, is known; on CUDA several steps come at once."""

    def on_epoch(self, row: SomeRow) -> None:
        """An epoch is finished and saved."""

    def on_end(self, result: SomeReport) -> None:
        """A training has ended, or its stored result was read."""


class CallOnEpoch(RunListener[SomeRow, Any]):
    """Calls a function with the row of every epoch."""

    def __init__(self, call: Callable[[SomeRow], None]) -> None:
        self._call = call

    def on_epoch(self, row: SomeRow) -> None:
        """Pass the row on."""
        self._call(row)
