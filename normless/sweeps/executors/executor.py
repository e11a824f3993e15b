"""The interface between a laboratory and what executes its runs: tasks in, futures out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Protocol, Self, TypeVar

from normless.errors import NormlessError

Result = TypeVar("Result")


class WorkerDiedError(NormlessError):
    """The process of a task died; the message says how. The task may be submitted again."""


class Executor(Protocol):
    """Calls functions in other processes; a context manager that starts the processes and ends them at once.

    They end with this process too, even if it is killed.
    """

    @property
    def window(self) -> int:
        """The largest number of unfinished tasks."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Call `function(*args)` as soon as a process is free.

        Args:
            function: importable by name.
            args: each picklable.
            group: tasks of a group share data and compiled code; an executor may call them in one process in turn.

        Returns:
            The future of the result. It raises `WorkerDiedError` if the process died, or the function's exception.
        """


# Creates an executor that has not been entered yet.
ExecutorFactory = Callable[[], Executor]
