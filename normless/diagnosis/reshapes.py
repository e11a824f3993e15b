"""A check for reshapes in place of transpositions, which have the axes of the argument in another order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import Evidence, Steps, check, finding
from normless.diagnosis.flow import LOSS

_RESHAPES = {"view", "reshape", "view_as", "reshape_as", "unflatten", "_unsafe_view"}
# More axes than this are not compared in every order.
MANY = 6
Shape = tuple[int, ...]


@check("reshapes")
def check_reshapes(exam: Examination) -> Steps:
    """Look for reshapes to the axes of the argument in another order, which mixes the values of these axes."""
    calls = [call for call in exam.passed.flow.calls if call.name in _RESHAPES and call.is_signal and call.reads]
    for call in calls:
        before = call.reads[0][1]
        if is_mixing(before, call.shape):
            place = "the loss" if call.path == LOSS else call.place
            evidence: Evidence = {"before": str(before), "after": str(call.shape), "line": str(call.line or place)}
            yield finding("mixing_reshape", 0.86, () if call.path == LOSS else (call.place,), evidence, place=place)
            return f"{call.name} at {place} mixes axes"
    return f"{len(calls)} of them, each splits or joins neighbouring axes"


def is_mixing(before: Shape, after: Shape) -> bool:
    """Whether a reshape between two shapes has the effect on shapes of a permutation of axes, and joins or splits."""
    for old, new in _segments(before, after):
        if 1 < len(old) <= MANY and 1 < len(new) <= MANY and (_is_permuted(old, new) or _is_permuted(new, old)):
            return True
    return False


def _segments(before: Shape, after: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Divide two shapes with equally many elements where the products of their leading axes agree."""
    old, new = ([size for size in shape if size != 1] for shape in (before, after))
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while prod(left) != prod(right):
            shorter, rest = (left, old) if prod(left) < prod(right) else (right, new)
            if not rest:
                return
            shorter.append(rest.pop(0))
        yield tuple(left), tuple(right)


def _is_permuted(many: Shape, few: Shape) -> bool:
    """Whether the axes of a shape, in another order, can be joined to those of another shape."""
    return len(many) >= len(few) and any(
        order != many and _joins(order, few) for order in set(permutations(many)) if order != many
    )


def _joins(many: Shape, few: Shape) -> bool:
    """Whether neighbouring axes can be joined so that a shape becomes another."""
    left = list(many)
    for size in few:
        joined = 1
        while joined < size and left:
            joined *= left.pop(0)
        if joined != size:
            return False
    return not left
