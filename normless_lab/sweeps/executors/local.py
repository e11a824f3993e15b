"""Runs in processes on this machine, which share its cores and are reused from one run to the next."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from queue import SimpleQueue
from typing import Any, Self

from pebble import CONSTS, ProcessExpired, ProcessPool

from normless.errors import NormlessError
from normless_lab.process import available_cores, threads_of_each
from normless_lab.sweeps.executors.executor import Result, WorkerDiedError, settle

# Number of times that a task is given to a new process because its process ended before the task began.
STARTS = 3
CONTEXT = get_context("spawn")
# Seconds in which a run finishes its step and saves itself after SIGTERM, before it is killed.
CONSTS.term_timeout = 30


class NoWorkerError(NormlessError):
    """Worker processes end before they take a task; the message names the likely reason."""


@dataclass(eq=False)
class Task:
    """A function to call, the future of its result, and the number of times that it was given to a process."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    group: Hashable
    future: Future[Any]
    starts: int = 0


class LocalExecutor:
    """Worker processes that share the cores, of one thread each if there is one per core; a context manager.

    A free process takes a task of its last group, else of a group that other processes do not work on, else the task
    that has waited longest: replicates of one point share their data and compiled code. The processes ignore Ctrl-C,
    write only to standard error, and end with this process, even if it is killed.

    If `workers` is None, there is one process per core; a number below 1 raises a ValueError. `threads` is the number
    per process; if None, its share of the cores.
    """

    # All tasks may be submitted at once: they wait here, so that those of a group are executed together.
    window = 1_000_000

    def __init__(self, workers: int | None = None, *, threads: int | None = None) -> None:
        count = available_cores() if workers is None else workers
        if count < 1:
            raise ValueError(f"Expected 1 or more workers, got {count}.")
        share = threads_of_each(count) if threads is None else threads
        self._processes = [WarmProcess(share) for _ in range(count)]
        self._free = list(self._processes)
        self._waiting: dict[Hashable, deque[Task]] = {}
        self._working: dict[WarmProcess, Task] = {}
        # Whether a process has ever taken a task.
        self._begun = False
        # Only one thread uses the attributes above; it receives these events.
        self._events: SimpleQueue[Task | tuple[WarmProcess, Task, Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="normless executor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes at once; their tasks are cancelled."""
        self._events.put(None)
        self._thread.join()

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)` in the next free process; see `Executor`."""
        future: Future[Result] = Future()
        self._events.put(Task(function, args, group, future))
        return future

    def _serve(self) -> None:
        """Give tasks to processes and results to futures until the context ends."""
        while (event := self._events.get()) is not None:
            if isinstance(event, Task):
                self._waiting.setdefault(event.group, deque()).append(event)
            else:
                self._finish(*event)
            while self._free and self._waiting:
                process = self._free.pop()
                self._give(process, self._next_for(process))
        for process in self._processes:
            process.end()
        for task in (*self._working.values(), *(task for tasks in self._waiting.values() for task in tasks)):
            task.future.cancel()

    def _next_for(self, process: WarmProcess) -> Task:
        """Return the next task of a free process."""
        group = process.group
        if group not in self._waiting:
            taken = {task.group for task in self._working.values()}
            group = next(
                (candidate for candidate in self._waiting if candidate not in taken), next(iter(self._waiting))
            )
        task = self._waiting[group].popleft()
        if not self._waiting[group]:
            del self._waiting[group]
        return task

    def _give(self, process: WarmProcess, task: Task) -> None:
        task.starts += 1
        process.group = task.group
        self._working[process] = task
        try:
            outcome = process.schedule(task.function, task.args)
        except Exception as error:
            # As in a worker that imports its parent's script and so starts workers itself.
            outcome = Future()
            outcome.set_exception(error)
        outcome.add_done_callback(lambda future: self._events.put((process, task, future)))

    def _finish(self, process: WarmProcess, task: Task, outcome: Future[Any]) -> None:
        """Set the future of a task that ended; replace its process if it died."""
        error = outcome.exception()
        del self._working[process]
        self._free.append(process)
        if isinstance(error, (ProcessExpired, BrokenProcessPool)):
            # Part of a message of the killed process may be left in its pipe.
            process.end()
            if isinstance(error, BrokenProcessPool) and task.starts < STARTS:
                self._waiting.setdefault(task.group, deque()).appendleft(task)
                return
        self._begun = self._begun or not isinstance(error, BrokenProcessPool)
        settle(task.future, outcome, partial(_in_words, begun=self._begun))


def _in_words(error: BaseException, *, begun: bool) -> BaseException:
    """Return the error of a process in words; an exception of the task itself is unchanged.

    If processes cannot start, all tasks fail; if processes have `begun` other tasks, only this task fails.
    """
    if isinstance(error, ProcessExpired):
        return death(error.exitcode)
    if isinstance(error, BrokenProcessPool) and begun:
        return WorkerDiedError(f"its process ended {STARTS} times before it took the run.")
    if isinstance(error, BrokenProcessPool):
        return NoWorkerError(
            "no worker process could start; a script that starts them needs its own statements under "
            'if __name__ == "__main__", since every worker imports the script.'
        )
    return error


def death(exit_code: int | None) -> WorkerDiedError:
    """Return the error of a task after its process died with an exit code."""
    return WorkerDiedError(
        f"its process died with exit code {exit_code}; a process that needs more memory than there is ends like "
        "this, and fewer workers need less."
    )


class WarmProcess:
    """A process that is started with its first task and replaced when it dies.

    Each process has a separate pool, because a killed process may hold the lock of a shared pool.

    Attributes:
        group: group of its last task.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ProcessPool | None = None
        self.group: Hashable = None

    def schedule(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        """Call a function in the process, which must be idle."""
        if self._pool is not None and not self._pool.active:
            # It died while idle.
            self.end()
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=1, initializer=prepare_worker, initargs=(self._threads,), context=CONTEXT
            )
        future: Future[Any] = self._pool.schedule(function, args=args)
        return future

    def end(self) -> None:
        """End the process at once; the next task starts another."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None


def prepare_worker(threads: int) -> None:
    """Set up a worker process: threads, no standard output, the end with its parent."""
    threading.Thread(target=_end_with_parent, name="normless parent watch", daemon=True).start()
    # Only the parent writes to standard output.
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """End with the parent; otherwise a worker of a killed parent would work in folders that its successor uses."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
