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
from contextlib import contextmanager
from functools import wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

# Seconds after which a thread says what it waits for, and after which a fork no longer waits.
PATIENCE = 60.0

_LOGGER = logging.getLogger("normless")
P = ParamSpec("P")
T = TypeVar("T")


class Exclusive:
    """A lock that threads get in turn; a decorator of functions, see also `borrowing`.

    A thread that gives it back and takes it again, as a training between two steps, comes after those that wait. A
    signal, as of Ctrl-C, may raise an error between any two calls: who has the lock is what the lock itself says.

    Attributes:
        lock: the lock itself.
    """

    def __init__(self) -> None:
        # Who waits for the lock holds the gate; who comes later waits at the gate.
        self._gate = threading.Lock()
        self.lock: Any = threading.RLock()
        self._owner, self._calls = 0, threading.local()

    @property
    def is_wanted(self) -> bool:
        """Whether another thread waits for the lock that this thread has."""
        return self._gate.locked()

    @property
    def calls(self) -> int:
        """The number of calls of this thread inside one another, as of a loss that calls the library."""
        return getattr(self._calls, "number", 0)

    @property
    def is_own(self) -> bool:
        """Whether this thread has the lock."""
        return bool(self.lock._is_owned())

    def take(self) -> None:
        """Wait for the lock, which this thread does not have."""
        try:
            with self._gate:
                if not self.lock.acquire(timeout=PATIENCE):
                    self._say_that_it_waits()
                    self.lock.acquire()
        except BaseException:
            if self.is_own:
                self.lock.release()
            raise
        self._owner = get_ident()

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
            names.get(self._owner, "unknown"),
        )

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with the lock held for the whole of a call."""

        @wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> T:
            # That of a forked process is another.
            lock = None if self.is_own else self.lock
            if lock is not None:
                self.take()
            try:
                self._calls.number = self.calls + 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._calls.number -= 1
            finally:
                if lock is not None:
                    lock.release()

        return alone


exclusive = Exclusive()


def borrowing(manager: Callable[P, Iterator[T]]) -> Callable[P, _GeneratorContextManager[T]]:
    """Make a context manager, as `contextmanager` does, that has the lock from its first line to its last."""
    made = contextmanager(manager)

    @contextmanager
    @wraps(manager)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        if exclusive.is_own:
            with made(*args, **kwargs) as value:
                yield value
            return
        lock = exclusive.lock
        exclusive.take()
        try:
            with made(*args, **kwargs) as value:
                yield value
        finally:
            lock.release()

    return alone


_FORK = threading.local()


def _before_fork() -> None:
    # In the child nobody gives back what a thread that is inside normless has borrowed.
    _FORK.lock = None
    if exclusive.lock.acquire(timeout=PATIENCE):
        _FORK.lock = exclusive.lock


def _after_fork() -> None:
    if _FORK.lock is not None:
        _FORK.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=exclusive.renew)
