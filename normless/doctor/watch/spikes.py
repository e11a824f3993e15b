"""Detect steps of Adam that are far larger than those before, as after gradients that were small for long."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, isfinite, log
from statistics import median

from normless.doctor.watch.jumps import FEW, bound

# The least factor of a spike, the number of steps that it is compared with, and of those within which a jump of the
# loss may follow it.
FACTOR, WINDOW, LATER = 2.5, 30, 20


@dataclass
class Spikes:
    """The sizes of the last steps relative to the rate, and the last spike: its step and its ratio to the median."""

    last: tuple[int, float] | None = None
    _logs: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, step: int, size: float) -> None:
        """Add the size of a step."""
        if not (isfinite(size) and size > 0):
            return
        value = log(size)
        if len(self._logs) >= FEW and value > bound(self._logs, log(FACTOR)):
            if self.before(step) is None:
                self.last = step, exp(value - median(self._logs))
            return
        self._logs.append(value)

    def before(self, step: int) -> tuple[int, float] | None:
        """Return the spike that came shortly before a step, if there is one."""
        return self.last if self.last is not None and 0 <= step - self.last[0] <= LATER else None
