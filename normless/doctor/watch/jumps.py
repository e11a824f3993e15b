"""Detect jumps of numbers relative to their last values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log
from statistics import median

# A series is judged from FEW numbers on, and compared with its last WINDOW numbers.
FEW, WINDOW = 10, 100
# The least factors by which a layer's output or gradient jumps; gradients vary more.
OUTPUT, GRADIENT = 3.0, 10.0
# The least jump of a loss, as a share of the first losses.
RISE = 0.1


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
    rows = list(past)
    found = {}
    for name, value in values.items():
        logs = [log(row[name]) for row in rows if row.get(name, 0.0) > 0]
        if not isfinite(value):
            found[name] = value
        elif len(logs) > 1 and value > 0 and log(value) > bound(logs, log(factor)):
            found[name] = value / median(row[name] for row in rows if row.get(name, 0.0) > 0)
    return found
