"""One thread at a time is inside normless where it uses what Python and torch keep once per process.

Such are the states of random generators, torch's tracing and switches, the default dtype, `sys.path`, and the modes,
hooks and class of a network that several threads may have. Every place that changes them is a context manager by
`borrowing` or a function by `exclusive`; public functions that read a network take the lock first and for their whole
call, so that no thread waits for it with a lock of its own, as that of `cached_property`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

P = ParamSpec("P")
T = TypeVar("T")


class Exclusive:
    """A lock around the calls of functions, as a decorator; see also `borrowing`. A thread may take it again."""

    def __init__(self) -> None:
        self.lock, self._calls = threading.RLock(), threading.local()

    @property
    def calls(self) -> int:
        """The number of calls of this thread inside one another, as of a loss that calls the library."""
        return getattr(self._calls, "number", 0)

    def renew(self) -> None:
        """Forget the threads of the parent, in a forked process."""
        self.__init__()  # type: ignore[misc]

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with the lock held for the whole of a call."""

        @wraps(function)
        def alone(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.lock:
                self._calls.number = self.calls + 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._calls.number -= 1

        return alone


exclusive = Exclusive()


def borrowing(manager: Callable[P, Iterator[T]]) -> Callable[P, _GeneratorContextManager[T]]:
    """Make a context manager, as `contextmanager` does, that has the lock from its first line to its last."""
    made = contextmanager(manager)

    @contextmanager
    @wraps(manager)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        with exclusive.lock, made(*args, **kwargs) as value:
            yield value

    return alone


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=exclusive.renew)
