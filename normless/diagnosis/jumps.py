"""When a number jumps out of its last values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log
from statistics import median

# Numbers that a series must have before one is judged, and the last ones that it is compared with.
FEW, WINDOW = 10, 100
# A layer's output or gradient jumps if it is larger by this factor at least: gradients vary more.
OUTPUT, GRADIENT = 3.0, 10.0
# The least rise of a loss that is a jump, as a share of the first losses.
RISE = 0.1


def bound(past: Sequence[float], margin: float) -> float:
    """What a number must exceed to be a jump: the median, plus twice the largest deviation upward or the margin.

    Of a normal distribution the largest of 100 is 2.5 standard deviations above the median, so this is five.
    """
    middle = median(past)
    return middle + max(2 * (max(past) - middle), margin)


def jumped(values: Mapping[str, float], past: Iterable[Mapping[str, float]], factor: float) -> dict[str, float]:
    """The ratio of each number to the median of its past, for those that jump on a logarithmic scale.

    Numbers with fewer than two past values are not judged; one that is not finite jumps.
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
