"""Runs in processes on this machine, which share its cores and are reused from one run to the next."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from pebble import ProcessExpired, ProcessPool

from normless.errors import NormlessError
from normless.machine import available_cores, threads_of_each
from normless.sweeps.executors.executor import Result, WorkerDiedError

# All may be submitted at once: waiting here, those of a group are carried out together.
WINDOW = 1_000_000
# How often a task is given to a new process because the one it was meant for was gone before it began.
STARTS = 3
CONTEXT = get_context("spawn")


class NoWorkerError(NormlessError):
    """Worker processes end before they take a task; the message says what may be the matter."""


@dataclass(eq=False)
class Task:
    """A function to call, the future of its result, and how often it was given to a process."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    group: Hashable
    future: Future[Any]
    starts: int = 0


@dataclass(frozen=True)
class Ended:
    """The end of a task in a process."""

    process: WarmProcess
    task: Task
    outcome: Future[Any]


class LocalExecutor:
    """Worker processes that share the cores, of one thread each if there is one per core; a context manager.

    A process that is free takes a task of the group it worked on last, else one of a group that no other process
    works on, else the one that waits longest: replicates of one point share the data they loaded and the code they
    compiled. The processes ignore Ctrl-C, write to standard error alone, and end when this process does, however it
    does.

    Args:
        workers: number of processes; one per core if None.
        threads: of each; its share of the cores if None.

    Raises:
        ValueError: the number of processes is below 1.
    """

    def __init__(self, workers: int | None = None, *, threads: int | None = None) -> None:
        count = available_cores() if workers is None else workers
        if count < 1:
            raise ValueError(f"Expected 1 or more workers, got {count}.")
        share = threads_of_each(count) if threads is None else threads
        self._processes = [WarmProcess(share) for _ in range(count)]
        self._free = list(self._processes)
        self._waiting: dict[Hashable, deque[Task]] = {}
        self._working: dict[WarmProcess, Task] = {}
        # Only one thread uses the attributes above; it receives these events.
        self._events: SimpleQueue[Task | Ended | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="normless executor", daemon=True)

    @property
    def window(self) -> int:
        """Unlimited in practice."""
        return WINDOW

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes at once; their tasks are cancelled."""
        self._events.put(None)
        self._thread.join()

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Carry out `function(*args)` in the next free process; see `Executor`."""
        future: Future[Result] = Future()
        self._events.put(Task(function, args, group, future))
        return future

    def _serve(self) -> None:
        """Give tasks to processes and results to futures until the executor is left."""
        while (event := self._events.get()) is not None:
            if isinstance(event, Task):
                self._waiting.setdefault(event.group, deque()).append(event)
            else:
                self._finish(event)
            while self._free and self._waiting:
                process = self._free.pop()
                self._give(process, self._next_for(process))
        for process in self._processes:
            process.end()
        for task in (*self._working.values(), *(task for tasks in self._waiting.values() for task in tasks)):
            task.future.cancel()

    def _next_for(self, process: WarmProcess) -> Task:
        """The task that fits a free process best."""
        group = process.group
        if group not in self._waiting:
            taken = {task.group for task in self._working.values()}
            group = next((one for one in self._waiting if one not in taken), next(iter(self._waiting)))
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
        outcome.add_done_callback(lambda future: self._events.put(Ended(process, task, future)))

    def _finish(self, ended: Ended) -> None:
        """Set the future of a task that ended; a process that died is replaced."""
        task, error = ended.task, ended.outcome.exception()
        del self._working[ended.process]
        self._free.append(ended.process)
        if isinstance(error, (ProcessExpired, BrokenProcessPool)):
            # Part of a message of the killed process may be left in its pipe.
            ended.process.end()
            if isinstance(error, BrokenProcessPool) and task.starts < STARTS:
                self._waiting.setdefault(task.group, deque()).appendleft(task)
                return
        if not task.future.set_running_or_notify_cancel():
            return
        if error is None:
            task.future.set_result(ended.outcome.result())
        else:
            task.future.set_exception(_explained(error))


def _explained(error: BaseException) -> BaseException:
    """The error of a process in words; an exception of the task itself is unchanged."""
    explained: NormlessError
    if isinstance(error, ProcessExpired):
        explained = WorkerDiedError(
            f"its process died with exit code {error.exitcode}; a process that needs more memory than there is "
            "ends like this, and fewer workers need less."
        )
    elif isinstance(error, BrokenProcessPool):
        explained = NoWorkerError(
            "no worker process could start; a script that starts them needs its own statements under "
            'if __name__ == "__main__", since every worker imports the script.'
        )
    else:
        return error
    explained.__cause__ = error
    return explained


class WarmProcess:
    """A pool of one process, started with the first task.

    A pool of its own for each: where processes share one, those that are killed may take its lock with them.

    Attributes:
        group: of the task that the process was given last.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ProcessPool | None = None
        self.group: Hashable = None

    def schedule(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        """Give the process a task; only if it has none."""
        if self._pool is not None and not self._pool.active:
            # It died while it had nothing to do.
            self.end()
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=1, initializer=prepare_worker, initargs=(self._threads,), context=CONTEXT
            )
        future: Future[Any] = self._pool.schedule(function, args=args)
        return future

    def end(self) -> None:
        """End the process, whatever it does; the next task starts another."""
        if self._pool is not None:
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()
            self._pool = None


def prepare_worker(threads: int) -> None:
    """Make this process a quiet worker that outlives its parent by no more than a moment."""
    threading.Thread(target=_end_with_parent, name="normless parent watch", daemon=True).start()
    # Standard output stays the parent's alone.
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """A parent that is killed ends nothing; what it started would go on in folders that its successor works in."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
