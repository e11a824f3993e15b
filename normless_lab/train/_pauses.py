"""Decide when a run is saved within an epoch, and when it stops early: at a time limit, or on SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from normless.errors import NormlessError

if TYPE_CHECKING:
    # Reading the file of a sweep must not import torch.
    from lightning_fabric import Fabric

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|seconds?|minutes?|hours?)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
# Number of steps after which several processes agree on whether to save or stop.
STEPS_BETWEEN_AGREEMENTS = 25

GO_ON, SAVE = 0, 1


class StoppedError(NormlessError):
    """A run was saved and stopped before its end; the same command resumes it."""

    exit_code: int


class TimeLimitError(StoppedError):
    """A run reached its time limit; the command's exit code is that of sysexits.h for "try again later"."""

    exit_code = 75


class TerminatedError(StoppedError):
    """The process received SIGTERM, for example from a cluster's scheduler."""

    exit_code = 128 + signal.SIGTERM


STOPS: dict[int, tuple[type[StoppedError], str]] = {
    TimeLimitError.exit_code: (TimeLimitError, "The run reached its time limit"),
    TerminatedError.exit_code: (TerminatedError, "The run was told to end (SIGTERM)"),
}


def seconds_of(text: str) -> float:
    """The seconds of a duration such as 90s, 10m, 1.5h or 10 minutes; a ValueError for any other text."""
    match = _DURATION.fullmatch(text)
    if match is None or not float(match[1]):
        raise ValueError(f"Expected a duration such as 90s, 10m or 1.5h, got {text!r}.")
    return float(match[1]) * _SECONDS[match[2][0]]


class Pauses:
    """Says after a step what is due: `GO_ON`, `SAVE`, or the exit code of a stop.

    Args:
        time_limit: duration after which the run stops, from the creation of this object, as 1.5h; None for no limit.
        checkpoint_every: steps, as 500 or 500 steps, or a duration, between two checkpoints within an epoch; None for
            the ends of epochs alone.

    Raises:
        ValueError: the text is neither a number of steps nor a duration.
    """

    def __init__(self, time_limit: str | None = None, checkpoint_every: str | None = None) -> None:
        steps = re.fullmatch(r"\s*([1-9]\d*)\s*(steps?)?\s*", checkpoint_every or "")
        self._steps = None if steps is None else int(steps[1])
        self._seconds = seconds_of(checkpoint_every) if checkpoint_every is not None and steps is None else None
        self._end = None if time_limit is None else time.monotonic() + seconds_of(time_limit)
        self._saved = time.monotonic()
        self._terminated = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within the context, SIGTERM stops the run after its step instead of ending the process."""
        with on_sigterm(self.terminate):
            yield

    def due(self, fabric: Fabric, step: int) -> int:
        """Return what is due after this number of steps; all processes get the same answer."""
        if fabric.world_size == 1:
            return self._own(step, 1)
        if step % STEPS_BETWEEN_AGREEMENTS:
            return GO_ON
        import torch

        code = torch.tensor(self._own(step, STEPS_BETWEEN_AGREEMENTS), device=fabric.device)
        return int(fabric.all_reduce(code, reduce_op="max"))  # type: ignore[arg-type]

    def check(self, fabric: Fabric) -> None:
        """Raise the error that stops a run which was just saved, if there is one."""
        self._saved = time.monotonic()
        code = self.due(fabric, 0)
        if code in STOPS:
            raise stop_of(code, "")

    def _own(self, step: int, interval: int) -> int:
        """What is due in this process, which was last asked `interval` steps ago."""
        now = time.monotonic()
        if self._terminated:
            return TerminatedError.exit_code
        if self._end is not None and now >= self._end:
            return TimeLimitError.exit_code
        by_steps = self._steps is not None and step // self._steps > max(0, step - interval) // self._steps
        if by_steps or (self._seconds is not None and now - self._saved >= self._seconds):
            self._saved = now
            return SAVE
        return GO_ON

    def terminate(self) -> None:
        """Stop the run after its step, as on SIGTERM."""
        self._terminated = True


def stop_of(code: int, where: str) -> StoppedError:
    """Return the error for a run that was saved and stopped."""
    kind, reason = STOPS[code]
    return kind(f"{reason}{where}; it is saved, and the same command goes on with it.")


@contextmanager
def on_sigterm(call: Callable[[], None]) -> Iterator[None]:
    """Within the context, SIGTERM calls a function; no effect outside the main thread, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != process:
            # A process forked from this one, which has none of its work.
            os._exit(128 + number)
        call()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
