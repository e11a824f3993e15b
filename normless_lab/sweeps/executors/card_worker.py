"""The process that executes runs on one GPU, several of them in turns."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

from normless_lab.sweeps.executors.admission import Admission
from normless_lab.sweeps.executors.local import called, prepare_worker, received, report
from normless_lab.sweeps.executors.processes import ROOM, Ended, Order
from normless_lab.sweeps.worker import carry_out_run, lacked_memory
from normless_lab.train.pauses import on_sigterm
from normless_lab.train.turns import Turn


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
