"""Runs on the GPUs of this machine, several of them in turns in one process for each GPU."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

from normless_lab.process import threads_of_each
from normless_lab.sweeps._processes import (
    ROOM,
    Ended,
    Order,
    ProcessExecutor,
    called,
    prepare_worker,
    received,
    report,
)
from normless_lab.sweeps._runs import carry_out_run, lacked_memory
from normless_lab.train import Settings
from normless_lab.train._pauses import on_sigterm
from normless_lab.train._turns import Turn

# Steps of each run before its speed counts, for loading, conversion and capture.
SETTLED = 10
# Seconds over which the speed at a number of runs is measured.
WINDOW = 2.0
# Doubling the runs is worthwhile if it multiplies the steps per second by this factor.
GAIN = 1.1
# Share of the free memory that further runs may take.
MEMORY_SHARE = 0.9


class Admission:
    """Decide whether a GPU takes a further run beside the running ones.

    With a `limit`, it takes this number of runs. Without it, the limit is found while they run: it begins at 1 and is
    doubled as long as this multiplies the steps per second by at least `GAIN`, and as long as the free memory
    suffices for the further runs, judged by the memory of the runs so far.

    Args:
        limit: the number of runs; None to find it.
        memory: the bytes that all runs have taken and the free bytes; (0, 1) if they are not known.
        clock: the time in seconds.

    Attributes:
        limit: the number of runs now.
    """

    def __init__(
        self,
        limit: int | None,
        memory: Callable[[], tuple[float, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = 1 if limit is None else limit
        self._is_fixed = limit is not None
        self._memory = memory
        self._clock = clock
        self._turns: dict[Hashable, int] = {}
        self._since: float | None = None
        self._counted = 0
        self._speed = 0.0

    def begin(self, run: Hashable) -> None:
        """Record that a run began."""
        self._turns[run] = 0

    def end(self, run: Hashable) -> None:
        """Record that a run ended."""
        self._turns.pop(run, None)

    def lack_memory(self) -> None:
        """Record that a run did not find memory beside the others, and decrease the limit by 1."""
        self.limit, self._is_fixed = max(1, len(self._turns) - 1), True

    def count(self, run: Hashable) -> None:
        """Record a step of a run; the limit may rise."""
        self._turns[run] += 1
        if self._is_fixed or len(self._turns) < self.limit:
            return
        if self._since is None:
            if min(self._turns.values()) >= SETTLED:
                self._since, self._counted = self._clock(), 0
            return
        self._counted += 1
        seconds = self._clock() - self._since
        if seconds >= WINDOW:
            self._judge(self._counted / seconds)

    def _judge(self, speed: float) -> None:
        """Double the limit if the last doubling increased the speed and the memory allows it."""
        pays, self._speed = speed >= GAIN * self._speed, speed
        taken, free = self._memory()
        fits = int(MEMORY_SHARE * free * len(self._turns) / taken) if taken else len(self._turns)
        further = min(self.limit, fits)
        if pays and further:
            self.limit += further
        else:
            self._is_fixed = True
        self._since = None


@dataclass
class Turns:
    """The runs that a process executes in turns; other functions are called at once.

    Attributes:
        admission: decides the number of simultaneous runs.
        report: called with the outcome of an order.
        orders: runs that were begun and must begin again when there is room.
    """

    admission: Admission
    report: Callable[[Ended], None]
    orders: deque[Order] = field(default_factory=deque)
    _active: dict[Order, Turn] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Whether a further run may begin."""
        return len(self._active) < self.admission.limit

    @property
    def is_idle(self) -> bool:
        """Whether all runs have ended."""
        return not self._active

    def take(self, order: Order) -> None:
        """Begin a run, or call another function."""
        if order.function is not carry_out_run:
            self.report(called(order))
            return
        self._active[order] = Turn(order.function, *order.args)
        self.admission.begin(order)

    def turn(self) -> None:
        """Make a step of each run that does not wait for the GPU; if all wait, wait for the first."""
        if self.orders and self.has_room:
            self.take(self.orders.popleft())
        ready = [order for order, run in self._active.items() if not run.is_waiting]
        waits_for = next((run.waits_for for run in self._active.values()), None)
        if not ready and waits_for is not None:
            waits_for.synchronize()
        for order in ready:
            run = self._active[order]
            if not run.go_on():
                self.admission.count(order)
                continue
            try:
                row = run.result()
            except Exception as error:
                self._fail(order, error)
                continue
            self._end(order)
            self.report(Ended(order.number, row))

    def terminate(self) -> None:
        """Make each run save itself and stop after its step."""
        for run in self._active.values():
            if run.pauses is not None:
                run.pauses.terminate()

    def _end(self, order: Order) -> None:
        del self._active[order]
        self.admission.end(order)

    def _fail(self, order: Order, error: Exception) -> None:
        """Report an error; a run that lacked memory beside others begins again when one of them has ended."""
        is_memory = type(error).__name__ == "OutOfMemoryError"
        if is_memory:
            self.admission.lack_memory()
        self._end(order)
        # The frames of the error refer to the tensors of the run.
        error.__traceback__ = None
        gc.collect()
        if is_memory:
            import torch

            torch.cuda.empty_cache()
        if is_memory and self._active:
            self.orders.append(order)
        elif is_memory:
            kind, values, *_ = order.args
            self.report(Ended(order.number, lacked_memory(kind, values, error)))
        else:
            self.report(Ended(order.number, error=error))


def serve_runs(connection: Connection, threads: int, limit: int | None, card: str | None) -> None:
    """Run orders on a GPU until the connection is closed.

    Args:
        connection: to the executor, which is asked for an order whenever there is room.
        threads: number of threads of the process.
        limit: the number of simultaneous runs; None to find it.
        card: value for `CUDA_VISIBLE_DEVICES`; None leaves the variable unchanged.
    """
    if card is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = card
    prepare_worker(threads)
    turns = Turns(Admission(limit, memory_of_card), partial(report, connection))
    with on_sigterm(turns.terminate), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        # The process is started for its first order.
        has_asked = True
        while True:
            if turns.has_room and not turns.orders and not has_asked:
                connection.send(ROOM)
                has_asked = True
            if (turns.is_idle and not turns.orders) or connection.poll():
                turns.take(received(connection))
                has_asked = False
            turns.turn()


def memory_of_card() -> tuple[float, float]:
    """Return the bytes of the GPU that this process has taken, and the free bytes; (0, 1) without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0.0, 1.0
    free, _ = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    return float(reserved), float(free)


# Of a process, which builds and converts networks on the CPU and trains none there.
MOST_THREADS = 4


class CardExecutor(ProcessExecutor):
    """A process for each GPU, in which runs take turns, each on a CUDA stream of its own; a context manager.

    The runs of a GPU share its copy of a data set. Each run has its own streams, generators and graphs, so its
    results do not depend on the others. A run that diverges or fails does not affect the others. A run that does not
    find enough memory waits until another run has ended. Other functions are called in between, one at a time.

    Args:
        together: the number of simultaneous runs on a GPU; if None, as many as memory and gain allow.
        cards: GPUs as in `CUDA_VISIBLE_DEVICES`, each with a process; if None, those that this process may use.

    Raises:
        ValueError: `together` is below 1.
    """

    def __init__(self, together: int | None = None, *, cards: tuple[str, ...] | None = None) -> None:
        if together is not None and together < 1:
            raise ValueError(f"Expected 1 or more runs together, got {together}.")
        chosen = visible_cards() if cards is None else cards
        serve = partial(serve_runs, threads=min(MOST_THREADS, threads_of_each(max(1, len(chosen)))), limit=together)
        super().__init__([partial(serve, card=card) for card in chosen or (None,)])


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
