"""Runs in processes on this machine, which share its cores and are reused from one run to the next."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import current_process, parent_process
from multiprocessing.connection import Connection, wait

from normless_lab.process import available_cores, threads_of_each, yield_to_others
from normless_lab.sweeps.executors.processes import ROOM, Ended, Order, ProcessExecutor


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
