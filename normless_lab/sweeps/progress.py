"""Progress of a laboratory: its listener interface, and a listener that shows a bar or lines on standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from normless_lab.sweeps.runs import OUTCOMES, RunRow

# Shortest time between two lines with counts.
SECONDS_BETWEEN_LINES = 10.0


class LaboratoryListener:
    """Callbacks about the runs of a laboratory, in the process that started them; override those of interest."""

    def on_begin(self, missing: int, finished: int) -> None:
        """A set of runs begins: `missing` are to be done, and `finished` more of the set were finished before."""

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Runs are finished and stored."""

    def on_resubmit(self, config_hash: str, error: str) -> None:
        """The process of a run died, and the run resumes in another process."""

    def on_wait(self, sentence: str) -> None:
        """The database does not answer, and the laboratory waits for it."""
        sys.stderr.write(f"{sentence}\n")

    def on_end(self) -> None:
        """All runs of the set that are executed here are finished."""


class SweepProgress(LaboratoryListener):
    """Shows a bar on a terminal and lines elsewhere; a context manager.

    Args:
        name: of the set of runs.
        console: to write to; standard error if None.
    """

    def __init__(self, name: str, console: Console | None = None) -> None:
        self.name = name
        self.console = Console(stderr=True) if console is None else console
        self.outcomes: Counter[str] = Counter()
        self._wanted = self._finished = 0
        self._last_line = -SECONDS_BETWEEN_LINES
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                Remaining(),
                console=self.console,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_begin(self, missing: int, finished: int) -> None:
        """The runs of the grid, or those of an extension."""
        self._wanted, self._finished = missing + finished, finished
        if self._bar is None:
            self._print(f"{missing} runs to do, {finished} finished before")
            return
        if self._task is None:
            self._task = self._bar.add_task(self.name, total=self._wanted, completed=finished, text="")
        self._bar.update(self._task, total=self._wanted, completed=finished)

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Show the number of finished runs."""
        self.outcomes.update(row.outcome for row in rows)
        self._finished += len(rows)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._finished, text=self._counts())
        elif self._finished == self._wanted or time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._print(f"{self._finished} of {self._wanted} runs ({self._counts()})")

    def on_resubmit(self, config_hash: str, error: str) -> None:
        """Report the lost worker."""
        self._print(f"run {config_hash[:8]}: {error} It goes on in another process.")

    def _counts(self) -> str:
        return ", ".join(f"{self.outcomes[name]} {name}" for name in OUTCOMES if self.outcomes[name])

    def _print(self, line: str) -> None:
        self.console.print(f"{self.name}: {line}", markup=False, highlight=False, soft_wrap=True)
