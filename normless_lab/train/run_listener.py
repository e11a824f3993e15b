"""Callbacks of a run: start, steps, epochs, end; and the progress bar. The loop itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from normless.cli import status_line
from normless_lab.train.settings import Settings


@dataclass(frozen=True)
class RunStart:
    """The state at the start of training: rows of `finished` epochs and losses (nats) from before an interruption."""

    config: Settings
    steps_per_epoch: int
    finished: tuple[Any, ...]
    losses: tuple[float, ...] = ()


class RunListener:
    """Callbacks of a run, called only in its first process; override those of interest.

    Rows and results are of the classes of the kind of run, as `EpochRow` and `RunResult`.

    An exception in a listener ends the run, which can then be resumed from its last finished epoch.
    """

    def on_start(self, start: RunStart) -> None:
        """Training starts or resumes; with doubled epochs, once for each training."""

    def on_step(self, step: int, loss: float) -> None:
        """The loss (nats) of a step, counted from 1, is known; on CUDA several steps come at once."""

    def on_epoch(self, row: Any) -> None:
        """An epoch is finished and saved."""

    def on_end(self, result: Any) -> None:
        """A training has ended, or its stored result was read."""

    def on_stop(self) -> None:
        """The training stops before its end: interrupted, saved for later, or by an error."""


class CallOnEpoch(RunListener):
    """Calls a function with the row of every epoch."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call = call

    def on_epoch(self, row: Any) -> None:
        """Call the function with the row."""
        self._call(row)


class ProgressBar(RunListener):
    """Shows steps, epoch, the last loss and score on a console, standard error if None; a context manager.

    Until the data is read and the network is built, a line says that the run is being prepared.

    If the console is not a terminal, as in a cluster's log, it prints a line at the start and a line per epoch.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._waiting = ExitStack()
        self._task = TaskID(0)
        self._epochs = 0

    def __enter__(self) -> ProgressBar:
        self._waiting.enter_context(status_line("preparing the run", self._console))
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        if not self._progress.disable:  # Before rich 14 it prints an empty line.
            self._progress.stop()

    def on_start(self, start: RunStart) -> None:
        """Start a new bar, filled by the steps of finished epochs."""
        self._epochs = start.config.epochs
        done = len(start.finished)
        self._waiting.close()
        self._progress.start()
        epochs, steps = (
            f"{count} {what}{'s' * (count != 1)}"
            for count, what in ((self._epochs, "epoch"), (start.steps_per_epoch, "step"))
        )
        self._line(f"{epochs} of {steps}; {done} done")
        self._task = self._progress.add_task(
            "training",
            total=self._epochs * start.steps_per_epoch,
            completed=done * start.steps_per_epoch,
            epoch=min(done + 1, self._epochs),
            epochs=self._epochs,
            loss="–",
            score=start.finished[-1].score if start.finished else "",
        )

    def on_step(self, step: int, loss: float) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step, loss=f"{loss:.3g}")

    def on_epoch(self, row: Any) -> None:
        """Show the score, or print the line of the epoch."""
        self._progress.update(self._task, epoch=min(row.epoch + 1, self._epochs), score=row.score)
        self._line(
            f"epoch {row.epoch}/{self._epochs}  loss {row.training_loss:.3g}  {row.score}  {row.seconds:.1f} s"
        )

    def on_end(self, result: Any) -> None:
        """Stop the bar where it is: full, or at the step of divergence. A stored result does not have a bar."""
        if self._progress.tasks:
            self._progress.update(self._task, score=result.score)
            self._progress.stop_task(self._task)

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
