"""The interface between a laboratory and what executes its runs: tasks go in, futures come out."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from normless.errors import NormlessError

Result = TypeVar("Result")


class WorkerDiedError(NormlessError):
    """The process that carried out a task is gone; the message says how it ended. The task may be submitted again."""


class Executor(Protocol):
    """Carries out functions in other processes; a context manager that starts them and ends them.

    When the block is left, what still runs is ended at once; it is ended too when this process dies.
    """

    @property
    def window(self) -> int:
        """How many tasks are worth submitting before the first of them is done; more may not be submitted."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def submit(self, function: Callable[..., Result], *args: Any, group: Hashable = None) -> Future[Result]:
        """Carry out `function(*args)` as soon as there is room for it.

        Args:
            function: importable by name.
            args: each picklable.
            group: tasks of one group have much in common, such as data and compiled code; an executor may have them
                carried out in the same process, one after another.

        Returns:
            The future of what the function returns. It raises `WorkerDiedError` where the process died meanwhile,
            else whatever the function raised.
        """


# Makes an executor that has not been entered yet.
ExecutorFactory = Callable[[], Executor]
