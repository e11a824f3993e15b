"""Jobs run in worker processes, which tell their parent what happens as it happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

from normless.errors import NormlessError
from normless.lab.executors.local import LocalExecutor
from normless.lab.executors.warm import CONTEXT

Job = TypeVar("Job")
Event = TypeVar("Event")
Result = TypeVar("Result")

POLL_SECONDS = 0.1

# The way back to the parent; set once in every worker process by `_prepare_events`, never in the parent.
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
        workers: number of processes, which share the cores; they ignore Ctrl-C, the parent ends them.
        on_event, on_result: called in this process, in the order in which things happened within a job.

    Raises:
        RunFailedError: a job raised or its process died. The other workers are ended first, as they are for
            whatever else is raised here, Ctrl-C included.
    """
    events: SimpleQueue[tuple[int, Any]] = CONTEXT.SimpleQueue()
    executor = LocalExecutor(min(workers, len(jobs)), prepare=_prepare_events, prepare_args=(events,))
    try:
        with executor:
            return _collect(executor, function, jobs, events, on_event, on_result)
    finally:
        events.close()


def _collect(
    executor: LocalExecutor,
    function: Callable[[Job, Callable[[Event], None]], Result],
    jobs: Sequence[Job],
    events: SimpleQueue[tuple[int, Any]],
    on_event: Callable[[int, Event], None],
    on_result: Callable[[int, Result], None],
) -> list[Result]:
    """Pass on events and results until every job has one."""
    futures: dict[Future[Result], int] = {
        executor.submit(_run_job, function, index, job): index for index, job in enumerate(jobs)
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
    except NormlessError as error:
        raise RunFailedError(f"The run {job} failed: {error}") from error
    except Exception as error:
        raise RunFailedError(f"The run {job} failed: {type(error).__name__}: {error}") from error


def _prepare_events(events: SimpleQueue[tuple[int, Any]]) -> None:
    """Take down the way back to the parent."""
    global _events
    _events = events


def _run_job(function: Callable[[Job, Callable[[Event], None]], Result], index: int, job: Job) -> Result:
    assert _events is not None
    events = _events
    return function(job, lambda event: events.put((index, event)))
