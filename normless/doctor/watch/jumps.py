"""Detect jumps of numbers relative to their last values, and steps of Adam that are far larger than those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from statistics import median

# A series is judged from FEW numbers on, and compared with its last WINDOW numbers.
FEW, WINDOW = 10, 100
# The least factors by which a layer's output or gradient jumps; gradients vary more.
OUTPUT, GRADIENT = 3.0, 10.0
# The least jump of a loss, as a share of the first losses.
RISE = 0.1
# The least factor of a spike, the number of steps that it is compared with, and of those within which a jump of the
# loss may follow it.
SPIKE, STEPS, LATER = 2.5, 30, 20


def bound(past: Sequence[float], margin: float) -> float:
    """Return the bound of a jump: the median plus twice the largest upward deviation, or plus the margin if larger.

    The largest of 100 normal numbers is 2.5 standard deviations above the median, so the bound is five of them.
    """
    middle = median(past)
    return middle + max(2 * (max(past) - middle), margin)


def jumped(values: Mapping[str, float], past: Iterable[Mapping[str, float]], factor: float) -> dict[str, float]:
    """Return the ratios to the median of their past for the numbers that jump on a logarithmic scale.

    Numbers with fewer than two past values are not judged. A number that is not finite is a jump.
    """
    rows, found = [*past], {}
    for name, value in values.items():
        before = [row[name] for row in rows if row.get(name, 0.0) > 0]
        if not isfinite(value):
            found[name] = value
        elif len(before) > 1 and value > 0 and log(value) > bound([*map(log, before)], log(factor)):
            found[name] = value / median(before)
    return found


@dataclass
class Spikes:
    """The sizes of the last steps relative to the rate, and the last spike: its step and its ratio to the median.

    The steps of Adam are far larger than before after gradients that were small for long.
    """

    _last: tuple[int, float] | None = None
    _logs: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))

    def add(self, step: int, size: float) -> None:
        """Add the size of a step."""
        if not (isfinite(size) and size > 0):
            return
        value = log(size)
        if len(self._logs) < FEW or value <= bound(self._logs, log(SPIKE)):
            self._logs.append(value)
        elif self.before(step) is None:
            self._last = step, exp(value - median(self._logs))

    def before(self, step: int) -> tuple[int, float] | None:
        """Return the spike that came shortly before a step, if there is one."""
        return self._last if self._last is not None and 0 <= step - self._last[0] <= LATER else None
