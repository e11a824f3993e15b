"""Submit runs to an executor and store their rows; resubmit a run if its process dies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from normless_lab.sweeps.processes import Executor, WorkerDiedError
from normless_lab.sweeps.progress import LaboratoryListener
from normless_lab.sweeps.runs import RunRow
from normless_lab.sweeps.store import RunState
from normless_lab.sweeps.worker import carry_out_run, failed_row, put_away
from normless_lab.train import Settings
from normless_lab.train.pauses import TimeLimitError

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
        seconds = None if left is None else _remaining(left)
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


def _remaining(left: Callable[[], float]) -> float:
    """Return the seconds that remain; raise a TimeLimitError if there are none."""
    seconds = left()
    if seconds <= 0:
        raise TimeLimitError("The time for runs is over; those in progress are saved, and the same command goes on.")
    return seconds


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
