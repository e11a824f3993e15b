"""Where a set of runs stands while it is carried out, on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from normless.sweeps.listener import LaboratoryListener
from normless.sweeps.row import OUTCOMES, RunRow

# Lines come no more often.
SECONDS_BETWEEN_LINES = 10.0


class SweepProgress(LaboratoryListener):
    """Tells of runs as they end; a context manager.

    Args:
        name: of the set of runs.
        console: to write to; standard error if None.
    """

    def __init__(self, name: str, console: Console | None = None) -> None:
        self.name = name
        self.console = Console(stderr=True) if console is None else console
        self.outcomes: Counter[str] = Counter()
        self._wanted = self._finished = 0
        self._said = -SECONDS_BETWEEN_LINES
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[outcomes]}"),
                TimeElapsedColumn(),
                Remaining(),
                console=self.console,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_begin(self, missing: int, finished: int) -> None:
        """The runs of the grid, or those of an extension."""
        self._wanted, self._finished = missing + finished, finished
        if self._bar is None:
            self._print(f"{missing} runs to carry out, {finished} finished before")
            return
        if self._task is None:
            self._task = self._bar.add_task(self.name, total=self._wanted, completed=finished, outcomes="")
        self._bar.update(self._task, total=self._wanted, completed=finished)

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Some more are finished."""
        self.outcomes.update(row.outcome for row in rows)
        self._finished += len(rows)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._finished, outcomes=self._counts())
        elif self._finished == self._wanted or time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._print(f"{self._finished} of {self._wanted} runs ({self._counts()})")

    def on_resubmit(self, config_hash: str, error: str) -> None:
        """A worker was lost."""
        self._print(f"run {config_hash[:8]}: {error} It goes on in another process.")

    def _counts(self) -> str:
        return ", ".join(f"{self.outcomes[name]} {name}" for name in OUTCOMES if self.outcomes[name])

    def _print(self, line: str) -> None:
        self.console.print(f"{self.name}: {line}", markup=False, highlight=False, soft_wrap=True)
