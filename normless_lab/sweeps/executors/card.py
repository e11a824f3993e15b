"""Runs on the GPUs of this machine, several of them side by side in one process for each GPU."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from normless_lab.process import threads_of_each
from normless_lab.sweeps.executors.card_worker import ROOM, Ended, Order, serve
from normless_lab.sweeps.executors.executor import Result, WorkerDiedError
from normless_lab.sweeps.executors.local import CONTEXT, death
from normless_lab.train import Settings

# Of a process, which builds and converts networks on the CPU and trains none there.
MOST_THREADS = 4
# Seconds in which the runs of a process that is told to end (SIGTERM) finish their steps and save themselves.
SECONDS_TO_SAVE = 30.0


class CardExecutor:
    """A process for each card, in which runs take turns, each on a CUDA stream of its own; a context manager.

    The runs of a GPU share its copy of a data set. Each run has its own streams, generators and graphs, so its
    results do not depend on the others. A run that diverges or fails does not affect the others. A run that does not
    find enough memory waits until another run has ended. Other functions are called in between, one at a time.

    Args:
        together: the number of simultaneous runs on a GPU; if None, as many as memory and gain allow.
        cards: GPUs as in `CUDA_VISIBLE_DEVICES`, each with a process; if None, those that this process may use.

    Raises:
        ValueError: `together` is below 1.
    """

    # All tasks may be submitted at once: they wait here.
    window = 1_000_000

    def __init__(self, together: int | None = None, *, cards: tuple[str, ...] | None = None) -> None:
        if together is not None and together < 1:
            raise ValueError(f"Expected 1 or more runs together, got {together}.")
        chosen = visible_cards() if cards is None else cards
        threads = min(MOST_THREADS, threads_of_each(max(1, len(chosen))))
        self._processes = [CardProcess(threads, together, card) for card in chosen or (None,)]
        self._waiting: deque[tuple[Order, Future[Any]]] = deque()
        self._numbers = 0
        self._lock = threading.Lock()
        # Writing to one end wakes the thread at the other.
        self._woken, self._wake = CONTEXT.Pipe(duplex=False)
        self._is_left = False
        self._thread = threading.Thread(target=self._serve, name="normless card executor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Save the runs, end the processes and cancel the submitted tasks."""
        self._is_left = True
        self._wake.send(None)
        self._thread.join()

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)` on a card that has room; see `Executor`."""
        future: Future[Result] = Future()
        with self._lock:
            self._numbers += 1
            self._waiting.append((Order(self._numbers, function, args), future))
        self._wake.send(None)
        return future

    def _serve(self) -> None:
        """Give tasks to processes and results to futures until the context ends."""
        while not self._is_left:
            while self._woken.poll():
                self._woken.recv()
            self._give()
            channels = {process.connection: process for process in self._processes if process.connection}
            for channel in wait([self._woken, *channels]):
                if channel is not self._woken:
                    channels[channel].receive()  # type: ignore[index]
        for process in self._processes:
            process.end()
        with self._lock:
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _give(self) -> None:
        """Give the waiting tasks to the processes that have asked for a task."""
        for process in self._processes:
            with self._lock:
                task = self._waiting.popleft() if self._waiting and process.has_room else None
            if task is not None:
                process.take(*task)


class CardProcess:
    """The process of a GPU, started with its first task and again when it dies.

    Attributes:
        connection: to the process; None if it does not run.
    """

    def __init__(self, threads: int, together: int | None, card: str | None) -> None:
        self._settings = threads, together, card
        self._process: Any = None
        self._asked = False
        self._orders: dict[int, Future[Any]] = {}
        self.connection: Connection | None = None

    @property
    def has_room(self) -> bool:
        """Whether the process asked for a task or is not started."""
        return self._process is None or self._asked

    def take(self, order: Order, future: Future[Any]) -> None:
        """Send a task to the process."""
        if not future.set_running_or_notify_cancel():
            return
        if self.connection is None:
            self._start()
        self._orders[order.number], self._asked = future, False
        try:
            self.connection.send(order)  # type: ignore[union-attr]
        except (BrokenPipeError, ConnectionResetError):
            # The death of the process is noticed in `receive`.
            return
        except Exception as error:
            self._orders.pop(order.number).set_exception(error)

    def receive(self) -> None:
        """Receive a message of the process, or notice its end."""
        try:
            message = self.connection.recv()  # type: ignore[union-attr]
        except (EOFError, OSError):
            self._process.join()
            self._forget(self._process.exitcode)
            return
        if message == ROOM:
            self._asked = True
        elif isinstance(message, Ended):
            future = self._orders.pop(message.number)
            if message.error is None:
                future.set_result(message.result)
            else:
                future.set_exception(message.error)

    def end(self) -> None:
        """End the process; its runs save themselves first."""
        if self._process is None:
            return
        self._process.terminate()
        self.connection.close()  # type: ignore[union-attr]
        self._process.join(SECONDS_TO_SAVE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        for future in self._orders.values():
            future.set_exception(WorkerDiedError("its process was ended."))
        self._orders.clear()
        self._process, self.connection = None, None

    def _start(self) -> None:
        self.connection, remote = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=serve, args=(remote, *self._settings), daemon=True)
        self._process.start()
        remote.close()

    def _forget(self, exit_code: int) -> None:
        """Fail the tasks of a process that died, which may be submitted again."""
        orders, self._orders = self._orders, {}
        self._process, self.connection, self._asked = None, None, False
        for future in orders.values():
            future.set_exception(death(exit_code))


def uses_card(config: Settings) -> bool:
    """Return whether a run trains on a GPU of this machine, in one process."""
    import torch

    wanted = getattr(config, "device", "cpu") != "cpu" and getattr(config, "devices", 1) == 1
    return wanted and torch.cuda.is_available()


def visible_cards() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as in `CUDA_VISIBLE_DEVICES`, without initializing them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(named.split(",")[:count]) if named else tuple(map(str, range(count)))
