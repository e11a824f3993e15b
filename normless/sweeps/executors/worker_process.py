"""One worker process that stays warm between tasks, and is replaced when it dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from pebble import ProcessPool

CONTEXT = get_context("spawn")


class WarmProcess:
    """A pool of one process, started with the first task.

    A pool of its own for each: where processes share one, those that are killed may take its lock with them.

    Attributes:
        group: of the task that the process was given last.

    Args:
        threads: of the process.
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
