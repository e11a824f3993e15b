"""Runs given to an executor, and their rows kept as they come; a run whose process dies goes on in another."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from normless.sweeps.executors.executor import Executor, WorkerDiedError
from normless.sweeps.listener import LaboratoryListener
from normless.sweeps.row import RunRow
from normless.sweeps.store import RunState
from normless.sweeps.worker import carry_out_run, failed_row
from normless.train import Settings

# How often a run may be given to another process because its own died.
RESUBMISSIONS = 3
# Of what makes two runs alike for an executor, these settings are no part.
REPLICATE = ("seed", "rate")


@dataclass
class Attempt:
    """A run that has been given to an executor, and how often before."""

    hash: str
    config: Settings
    deaths: int = 0
    started: float = field(default_factory=time.monotonic)


def dispatch(
    runs: Iterable[tuple[str, Settings]],
    executor: Executor,
    state: RunState,
    work: Path,
    listener: LaboratoryListener,
) -> None:
    """Carry out runs and keep their rows; returns when every one has its row.

    Args:
        runs: hash and configuration of each.
        executor: entered.
        state: receives the rows; as many at once as have ended meanwhile.
        work: holds the folder of each run in flight; it is removed when the run's row is kept, unless it failed.
        listener: told of rows that are kept, and of runs whose process died.

    Raises:
        StateError: the rows cannot be kept. What has ended is still in the runs' folders.
    """
    waiting = deque(Attempt(name, config) for name, config in runs)
    flying: dict[Future[RunRow], Attempt] = {}
    ended: SimpleQueue[Future[RunRow]] = SimpleQueue()
    while waiting or flying:
        while waiting and len(flying) < executor.window:
            attempt = waiting.popleft()
            future = _submit(executor, attempt, work)
            flying[future] = attempt
            future.add_done_callback(ended.put)
        rows = []
        for future in _some(ended):
            attempt = flying.pop(future)
            row = _row_of(future, attempt)
            if row is None:
                listener.on_resubmit(attempt.hash, str(future.exception()))
                waiting.appendleft(attempt)
            else:
                rows.append(row)
        state.add(rows)
        for row in rows:
            if row.outcome != "failed":
                shutil.rmtree(work / row.hash, ignore_errors=True)
        if rows:
            listener.on_runs(rows)


def _submit(executor: Executor, attempt: Attempt, work: Path) -> Future[RunRow]:
    config = attempt.config
    values = config.to_dict()
    alike = repr([value for name, value in values.items() if name not in REPLICATE])
    # The process may have another working directory.
    directory = str((work / attempt.hash).absolute())
    return executor.submit(carry_out_run, config.COMMAND, values, directory, group=alike)


def _some(ended: SimpleQueue[Future[RunRow]]) -> list[Future[RunRow]]:
    """All that have ended, at least one of which is waited for."""
    found = [ended.get()]
    while True:
        try:
            found.append(ended.get_nowait())
        except Empty:
            return found


def _row_of(future: Future[RunRow], attempt: Attempt) -> RunRow | None:
    """The row of a run; None where its process died and it may be tried again."""
    try:
        return future.result()
    except WorkerDiedError as error:
        attempt.deaths += 1
        if attempt.deaths <= RESUBMISSIONS:
            return None
        text = f"{type(error).__name__}: {error} This happened {attempt.deaths} times."
        return failed_row(attempt.config, text, time.monotonic() - attempt.started)
