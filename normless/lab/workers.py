"""Jobs run in worker processes of one thread each, which tell their parent what happens as it happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessPool

from normless.errors import NormlessError

Job = TypeVar("Job")
Event = TypeVar("Event")
Result = TypeVar("Result")

POLL_SECONDS = 0.1

# The way back to the parent; set once in every worker process by `_prepare_worker`, never in the parent.
# A simple queue writes before it returns: what a job emits is there before its result is.
_events: SimpleQueue[tuple[int, Any]] | None = None


class RunFailedError(NormlessError):
    """A job raised, or its process died; the message names the job and says what happened."""


def run_in_workers(
    function: Callable[[Job, Callable[[Event], None]], Result],
    jobs: Sequence[Job],
    *,
    workers: int,
    on_event: Callable[[int, Event], None],
    on_result: Callable[[int, Result], None],
) -> list[Result]:
    """Run ``function(job, emit)`` for every job, started in the given order; returns the results in it.

    Args:
        function: importable by name; what it passes to ``emit`` arrives at ``on_event`` with the job's index.
        jobs: each picklable; its ``str`` names it in errors.
        workers: number of processes, each with one thread; they ignore Ctrl-C, the parent ends them.
        on_event, on_result: called in this process, in the order in which things happened within a job.

    Raises:
        RunFailedError: a job raised or its process died. The other workers are ended first, as they are for
            whatever else is raised here, Ctrl-C included.
    """
    context = get_context("spawn")
    events: SimpleQueue[tuple[int, Any]] = context.SimpleQueue()
    pool = ProcessPool(
        max_workers=min(workers, len(jobs)), initializer=_prepare_worker, initargs=(events,), context=context
    )
    try:
        results = _collect(pool, function, jobs, events, on_event, on_result)
        pool.close()  # type: ignore[no-untyped-call]
    except BaseException:
        pool.stop()  # type: ignore[no-untyped-call]
        raise
    finally:
        pool.join()
        events.close()
    return results


def _collect(
    pool: ProcessPool,
    function: Callable[[Job, Callable[[Event], None]], Result],
    jobs: Sequence[Job],
    events: SimpleQueue[tuple[int, Any]],
    on_event: Callable[[int, Event], None],
    on_result: Callable[[int, Result], None],
) -> list[Result]:
    """Pass on events and results until every job has one."""
    futures: dict[Future[Result], int] = {
        pool.schedule(_run_job, args=(function, index, job)): index for index, job in enumerate(jobs)
    }
    pending = set(futures)
    results: dict[int, Result] = {}
    while pending:
        finished, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        while not events.empty():
            on_event(*events.get())
        for future in sorted(finished, key=futures.__getitem__):
            index = futures[future]
            results[index] = _result(future, jobs[index])
            on_result(index, results[index])
    return [results[index] for index in range(len(jobs))]


def _result(future: Future[Result], job: object) -> Result:
    try:
        return future.result()
    except ProcessExpired as error:
        raise RunFailedError(
            f"The run {job} failed: its process died with exit code {error.exitcode}; "
            "a process that needs more memory than there is ends like this, and fewer workers need less."
        ) from error
    except BrokenProcessPool as error:
        raise RunFailedError(
            f"The run {job} failed: no worker process could start; a script that starts them needs its own "
            'statements under if __name__ == "__main__", since every worker imports the script.'
        ) from error
    except Exception as error:
        raise RunFailedError(f"The run {job} failed: {type(error).__name__}: {error}") from error


def _prepare_worker(events: SimpleQueue[tuple[int, Any]]) -> None:
    """Make this process a quiet worker of one thread: standard output stays the parent's alone."""
    global _events
    _events = events
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)


def _run_job(function: Callable[[Job, Callable[[Event], None]], Result], index: int, job: Job) -> Result:
    assert _events is not None
    events = _events
    return function(job, lambda event: events.put((index, event)))
