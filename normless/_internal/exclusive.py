"""One thread at a time is inside normless where it uses what Python and torch keep once per process.

Such are the states of random generators, torch's tracing and switches, the default dtype, `sys.path`, and the modes,
hooks and class of a network that several threads may have. Every place that changes them is a context manager by
`borrowing` or a function by `exclusive`; public functions that read a network take the lock first and for their whole
call, so that no thread waits for it with a lock of its own, as that of `cached_property`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from threading import get_ident
from typing import ParamSpec, TypeVar

# Seconds after which a thread says what it waits for, and after which a fork no longer waits.
PATIENCE = 60.0

_LOGGER = logging.getLogger("normless")
P = ParamSpec("P")
T = TypeVar("T")


class Exclusive:
    """A lock that its thread may take again, and that threads get in turn; a context manager and a decorator.

    A thread that gives it back and takes it again, as a training between two steps, comes after those that wait.
    """

    def __init__(self) -> None:
        # Who waits for the lock holds the gate; who comes later waits at the gate.
        self._gate, self._lock = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    @property
    def is_wanted(self) -> bool:
        """Whether another thread waits for the lock that this thread has."""
        return self._gate.locked()

    def acquire(self, patience: float | None = None) -> bool:
        """Take the lock, in turn, or ahead of others within so many seconds; return whether this thread has it."""
        if self._owner != get_ident():
            if patience is not None:
                if not self._lock.acquire(timeout=patience):
                    return False
            else:
                with self._gate:
                    if not self._lock.acquire(timeout=PATIENCE):
                        self._say_that_it_waits()
                        self._lock.acquire()
            self._owner = get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        """Give the lock back as often as it was taken. A forked process has nothing of what its parent took."""
        if self._owner != get_ident():
            return
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def renew(self) -> None:
        """Forget the threads of the parent, in a forked process."""
        self.__init__()  # type: ignore[misc]

    def _say_that_it_waits(self) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        _LOGGER.warning(
            "normless: thread %r has waited %g s for thread %r, which is inside a call of normless; one thread at a "
            "time is. If that call waits for this thread, as in a callback, neither goes on.",
            threading.current_thread().name,
            PATIENCE,
            names.get(self._owner, "that has ended"),
        )

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with the lock held for the whole of a call."""

        @wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return function(*args, **kwargs)

        return alone


exclusive = Exclusive()


def borrowing(manager: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Make a context manager, as `contextmanager` does, that has the lock from its first line to its last."""
    made = contextmanager(manager)

    @contextmanager
    @wraps(manager)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        with exclusive, made(*args, **kwargs) as value:
            yield value

    return alone


_FORK = threading.local()


def _before_fork() -> None:
    # In the child nobody gives back what a thread that is inside normless has borrowed.
    _FORK.waited = False
    _FORK.waited = exclusive.acquire(PATIENCE)


def _after_fork() -> None:
    if _FORK.waited:
        exclusive.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=exclusive.renew)
