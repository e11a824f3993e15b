"""Executors of a laboratory's runs: tasks in, futures out; processes that are replaced when they die."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, Self, TypeVar

from normless.errors import NormlessError
from normless_lab.process import available_cores, threads_of_each, yield_to_others

Result = TypeVar("Result")


class WorkerDiedError(NormlessError):
    """The process of a task died; the message gives the reason. The task may be submitted again."""


class Executor(Protocol):
    """Call functions in other processes; a context manager that starts the processes and ends them at once.

    They also end with this process, even if it is killed.
    """

    @property
    def window(self) -> int:
        """The largest number of unfinished tasks."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)`, importable by name and picklable, as soon as a process is free.

        Tasks of a group share data and compiled code; an executor may call them in one process in turn. The future
        raises the function's exception, or `WorkerDiedError` if the process died.
        """


# Creates an executor that has not been entered yet.
ExecutorFactory = Callable[[], Executor]


def settle(future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    """Give a future its result or its error, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


CONTEXT = get_context("spawn")
# Number of processes to which a task is given because the ones before ended without beginning it.
STARTS = 3
# Seconds in which runs finish their step and save themselves after SIGTERM, before their process is killed.
SECONDS_TO_SAVE = 30.0
# A message of a process: it takes a further order.
ROOM = "room"


@dataclass(frozen=True, eq=False)
class Order:
    """A function to call in a process, with a number that names its outcome."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Ended:
    """The result of an order, or the exception that it raised."""

    number: int
    result: Any = None
    error: BaseException | None = None


class NoWorkerError(NormlessError):
    """Worker processes end before they take a task; the message names the likely reason."""


@dataclass(eq=False)
class GivenOrder:
    """An order, its group, the future of its result, how often it was given out, and whether it began."""

    order: Order
    group: Hashable
    future: Future[Any]
    starts: int = 0
    has_begun: bool = False


class ProcessExecutor:
    """Processes that start with their first task and ask for each further one; a context manager.

    A process takes a task of its last group, else of a group that other processes do not work on, else the task that
    has waited longest: replicates of one point share their data and compiled code.

    Args:
        serve: for each process the function that it calls with its end of a connection. It receives an `Order` and
            one more for each `ROOM` that it sends. It sends the number of an order that begins and an `Ended` for one
            that ends, and returns when the connection is closed.
    """

    # All tasks may be submitted at once: they wait here, so that those of a group are run together.
    window = 1_000_000

    def __init__(self, serve: Sequence[Callable[[Connection], None]]) -> None:
        self._processes = [WorkerProcess(function) for function in serve]
        self._waiting: dict[Hashable, deque[GivenOrder]] = {}
        self._lock = threading.Lock()
        self._numbers = count()
        self._has_begun = False
        # Writing to one end wakes the thread at the other.
        self._woken, self._wake = CONTEXT.Pipe(duplex=False)
        self._is_left = False
        self._thread = threading.Thread(target=self._serve, name="normless executor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, whose runs save themselves first; the submitted tasks are cancelled."""
        self._is_left = True
        self._wake.send(None)
        self._thread.join()

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)` in a process with room; see `Executor`."""
        task = GivenOrder(Order(next(self._numbers), function, args), group, Future())
        with self._lock:
            self._waiting.setdefault(group, deque()).append(task)
        self._wake.send(None)
        return task.future

    def _serve(self) -> None:
        """Give tasks to processes and results to futures until the context ends."""
        while True:
            while self._woken.poll():
                self._woken.recv()
            # Read after the messages, since the one that announces the end is among them.
            if self._is_left:
                break
            for process in self._processes:
                if process.has_room and (task := self._next_for(process)):
                    process.take(task)
            channels = {process.connection: process for process in self._processes if process.connection}
            for channel in wait([self._woken, *channels]):
                if channel is not self._woken:
                    self._receive(channels[channel])  # type: ignore[index]
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        left = [task for process in self._processes for task in process.end(deadline)]
        with self._lock:
            left += [task for tasks in self._waiting.values() for task in tasks]
        for task in left:
            task.future.cancel()

    def _next_for(self, process: WorkerProcess) -> GivenOrder | None:
        """Return the next task of a process, which no longer waits."""
        with self._lock:
            if not self._waiting:
                return None
            group = process.group
            if group not in self._waiting:
                taken = {task.group for other in self._processes for task in other.tasks.values()}
                groups = (candidate for candidate in self._waiting if candidate not in taken)
                group = next(groups, next(iter(self._waiting)))
            task = self._waiting[group].popleft()
            if not self._waiting[group]:
                del self._waiting[group]
            return task

    def _receive(self, process: WorkerProcess) -> None:
        """Receive a message of a process, or notice its end."""
        try:
            message = process.connection.recv()  # type: ignore[union-attr]
        except (EOFError, OSError):
            self._replace(process)
            return
        if isinstance(message, Ended):
            settle(process.tasks.pop(message.number).future, message.result, message.error)
        elif message == ROOM:
            process.has_room = True
        else:
            process.tasks[message].has_begun = self._has_begun = True

    def _replace(self, process: WorkerProcess) -> None:
        """Fail the tasks of a process that died; those that it had not begun wait for another."""
        for task in process.end(time.monotonic() + SECONDS_TO_SAVE):
            if task.has_begun:
                settle(task.future, error=death(process.exit_code))
            elif task.starts < STARTS:
                with self._lock:
                    self._waiting.setdefault(task.group, deque()).appendleft(task)
            elif self._has_begun:
                words = f"its process ended {STARTS} times before it took the run."
                settle(task.future, error=WorkerDiedError(words))
            else:
                settle(
                    task.future,
                    error=NoWorkerError(
                        "no worker process could start; a script that starts them needs its own statements under "
                        'if __name__ == "__main__", since every worker imports the script.'
                    ),
                )


class WorkerProcess:
    """A process that is started with its first task and again when it has died.

    Attributes:
        connection: to the process; None if it does not run.
        has_room: whether it asks for a task, or does not run.
        group: group of its last task.
        tasks: its unfinished tasks, by the number of their order.
        exit_code: of the process that ran before.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._target = serve
        self._process: Any = None
        self.connection: Connection | None = None
        self.has_room = True
        self.group: Hashable = None
        self.tasks: dict[int, GivenOrder] = {}
        self.exit_code: int | None = None

    def take(self, task: GivenOrder) -> None:
        """Send a task to the process."""
        self.group = task.group
        task.starts += 1
        try:
            if self.connection is None:
                self._start()
            self.connection.send(task.order)  # type: ignore[union-attr]
        except (BrokenPipeError, ConnectionResetError):
            pass  # The death of the process is noticed when its next message is received.
        except Exception as error:
            # It cannot be pickled; or this process imports its parent's script and so starts processes itself.
            settle(task.future, error=error)
            return
        self.tasks[task.order.number], self.has_room = task, False

    def _start(self) -> None:
        connection, remote = CONTEXT.Pipe()
        # The parent ends with its daemons instead of waiting for them.
        self._process = CONTEXT.Process(target=self._target, args=(remote,), daemon=True)
        self._process.start()
        remote.close()
        self.connection = connection

    def terminate(self) -> None:
        """Tell the process to save its runs and end."""
        if self.connection is not None:
            self._process.terminate()
            self.connection.close()

    def end(self, deadline: float) -> list[GivenOrder]:
        """Wait for the end of the process, kill it at a time of the monotonic clock, and return its tasks."""
        if self.connection is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self.exit_code = self._process.exitcode
        self.connection, self.has_room = None, True
        tasks, self.tasks = list(self.tasks.values()), {}
        return tasks


def death(exit_code: int | None) -> WorkerDiedError:
    """Return the error of a task after its process died with an exit code."""
    return WorkerDiedError(
        f"its process died with exit code {exit_code}; a process that needs more memory than there is ends like "
        "this, and fewer workers need less."
    )


class LocalExecutor(ProcessExecutor):
    """Worker processes that share the cores, of one thread each if there is one per core; a context manager.

    The processes ignore Ctrl-C, write only to standard error, and end with this process, even if it is killed.

    If `workers` is None, there is one process per core; a number below 1 raises a ValueError. `threads` is the number
    per process; if None, its share of the cores. In the `background` they have the lowest priority.
    """

    def __init__(self, workers: int | None = None, *, threads: int | None = None, background: bool = False) -> None:
        count = available_cores() if workers is None else workers
        if count < 1:
            raise ValueError(f"Expected 1 or more workers, got {count}.")
        share = threads_of_each(count) if threads is None else threads
        super().__init__([partial(serve_calls, threads=share, background=background)] * count)


def serve_calls(connection: Connection, threads: int, background: bool = False) -> None:
    """Call the functions of orders, one after another, until the connection is closed."""
    if background:
        yield_to_others()
    prepare_worker(threads)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            report(connection, called(received(connection)))
            connection.send(ROOM)


def received(connection: Connection) -> Order:
    """Receive an order, and say that it begins."""
    order: Order = connection.recv()
    connection.send(order.number)
    return order


def called(order: Order) -> Ended:
    """Return the outcome of an order."""
    try:
        return Ended(order.number, order.function(*order.args))
    except Exception as error:
        return Ended(order.number, error=error)


def report(connection: Connection, ended: Ended) -> None:
    """Send an outcome, if the connection is still open; send the text of an error that cannot be pickled."""
    try:
        # Some errors can be pickled but not be restored.
        pickle.loads(pickle.dumps(ended))
    except Exception as error:
        cause = ended.error or error
        ended = Ended(ended.number, error=RuntimeError(f"{type(cause).__name__}: {cause}"))
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.send(ended)


def prepare_worker(threads: int) -> None:
    """Set up a worker process: threads, no standard output, no Ctrl-C, the end with its parent."""
    threading.Thread(target=_end_with_parent, name="normless parent watch", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Only the parent writes to standard output.
    os.dup2(2, 1)
    # A daemon may not have processes, which loaders of images need.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    import torch

    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """End with the parent; otherwise a worker of a killed parent would work in folders that its successor uses."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
