"""The interface between a laboratory and what executes its runs: tasks in, futures out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Protocol, Self, TypeVar

from normless.errors import NormlessError

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
