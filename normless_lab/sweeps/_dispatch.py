"""Submit runs to an executor, store their rows, and tell listeners of it; a run goes on if its process dies."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn as Remaining,
)

from normless_lab.sweeps._processes import Executor, WorkerDiedError
from normless_lab.sweeps._runs import OUTCOMES, RunRow, carry_out_run, failed_row, put_away
from normless_lab.sweeps._store import RunState
from normless_lab.train import Settings
from normless_lab.train._pauses import TimeLimitError

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
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            Remaining(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None, visible=False, text="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bar.disable:  # Before rich 14 it prints an empty line.
            self._bar.stop()

    def start(self, name: str) -> None:
        """Begin with another set of runs, whose number is not known yet."""
        self.name = name
        self.outcomes.clear()
        self._bar.reset(self._task, total=None, description=name, visible=True, text="")

    def on_begin(self, missing: int, finished: int) -> None:
        """The runs of the grid, or those of an extension."""
        self._wanted, self._finished = missing + finished, finished
        if self._bar.disable:
            self.print(f"{missing} runs to do, {finished} finished before")
        self._bar.update(self._task, total=self._wanted, completed=finished, visible=True)

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Show the number of finished runs."""
        self.outcomes.update(row.outcome for row in rows)
        self._finished += len(rows)
        counts = ", ".join(f"{self.outcomes[name]} {name}" for name in OUTCOMES if self.outcomes[name])
        self._bar.update(self._task, completed=self._finished, text=counts)
        is_due = self._finished == self._wanted or time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        if self._bar.disable and is_due:
            self._last_line = time.monotonic()
            self.print(f"{self._finished} of {self._wanted} runs ({counts})")

    def on_resubmit(self, config_hash: str, error: str) -> None:
        """Report the lost worker."""
        self.print(f"run {config_hash[:8]}: {error} It goes on in another process.")

    def print(self, line: str) -> None:
        """Print a line about the runs."""
        self.console.print(f"{self.name}: {line}", markup=False, highlight=False, soft_wrap=True)


# Number of times that a run is submitted again because its process died.
RESUBMISSIONS = 3
# Settings in which runs of the same group of an executor may differ.
REPLICATE = ("seed", "rate")


@dataclass
class Attempt:
    """A run to execute, and the number of times that its process died.

    Attributes:
        work: the folder in which the running run has a folder of its own.
        keep: where this folder is moved once the row is stored; None removes it. The folder of a failed run stays.
        options: as in `carry_out_run`.
    """

    hash: str
    config: Settings
    work: Path
    keep: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    deaths: int = 0
    started: float = field(default_factory=time.monotonic)


def dispatch(
    attempts: Iterable[Attempt],
    executor: Executor,
    state: RunState,
    listener: LaboratoryListener,
    *,
    left: Callable[[], float] | None = None,
) -> None:
    """Execute runs and store their rows; return when every run has a row.

    The table is read again before runs begin, since other drivers may share it. `left` returns the seconds that
    remain; a TimeLimitError is raised when there are none.
    """
    waiting = deque(attempts)
    running: dict[Future[RunRow], Attempt] = {}
    ended: SimpleQueue[Future[RunRow]] = SimpleQueue()
    while waiting or running:
        seconds = None if left is None else left()
        if seconds is not None and seconds <= 0:
            raise TimeLimitError(
                "The time for runs is over; those in progress are saved, and the same command goes on."
            )
        begun, rows = _to_begin(waiting, executor.window - len(running), state)
        for attempt in begun:
            config, values = attempt.config, attempt.config.to_dict()
            group = repr([value for name, value in values.items() if name not in REPLICATE])
            # The process may have another working directory.
            directory = str((attempt.work / attempt.hash).absolute())
            future = executor.submit(carry_out_run, config.KIND, values, directory, attempt.options, group=group)
            running[future] = attempt
            future.add_done_callback(ended.put)
        if rows:
            listener.on_runs(rows)
        rows, done = [], []
        for future in _all_of(ended, seconds) if running else ():
            attempt = running.pop(future)
            row = _row_of(future, attempt)
            if row is None:
                listener.on_resubmit(attempt.hash, str(future.exception()))
                waiting.appendleft(attempt)
            else:
                rows.append(row)
                done += [attempt] if row.outcome != "failed" else []
        state.add(rows)
        for attempt in done:
            put_away(attempt.work / attempt.hash, attempt.keep)
        if rows:
            listener.on_runs(rows)


def _to_begin(waiting: deque[Attempt], most: int, state: RunState) -> tuple[list[Attempt], list[RunRow]]:
    """Take at most so many runs to begin, and the rows of those that another driver has finished meanwhile.

    A run whose folder is to be kept starts again if the folder is not there.
    """
    begun: list[Attempt] = []
    rows: list[RunRow] = []
    while waiting and len(begun) < most:
        first = [waiting.popleft() for _ in range(min(most - len(begun), len(waiting)))]
        kept = [run.hash for run in first if run.keep is None or (run.keep / run.hash).exists()]
        there = state.read(kept)
        begun += [attempt for attempt in first if attempt.hash not in there]
        rows += there.values()
    return begun, rows


def _all_of(ended: SimpleQueue[Future[RunRow]], seconds: float | None) -> list[Future[RunRow]]:
    """Wait for the first future, at most so many seconds, and return all that are done."""
    futures: list[Future[RunRow]] = []
    with suppress(Empty):
        futures.append(ended.get(timeout=seconds))
        while True:
            futures.append(ended.get_nowait())
    return futures


def _row_of(future: Future[RunRow], attempt: Attempt) -> RunRow | None:
    """Return the row of a run; None if its process died and the run may be submitted again."""
    try:
        row = future.result()
    except WorkerDiedError as error:
        attempt.deaths += 1
        if attempt.deaths <= RESUBMISSIONS:
            return None
        text = f"{type(error).__name__}: {error} This happened {attempt.deaths} times."
        return failed_row(attempt.config, text, time.monotonic() - attempt.started)
    if row.hash == attempt.hash:
        return row
    files = ", ".join(attempt.config.contents) or "its settings"
    text = f"SweepError: the content of {files} changed while the sweep ran; start the sweep again."
    return failed_row(attempt.config, text, row.seconds)
