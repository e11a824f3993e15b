"""Check of reshapes that move an axis, which mixes the values of several axes."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, Call, tensors
from normless.doctor.findings import Evidence, Steps, check, finding

_RESHAPES = {"view", "reshape", "view_as", "reshape_as"}
Shape = tuple[int, ...]


@check("reshapes")
def check_reshapes(exam: Examination) -> Steps:
    """Look for a reshape that moves an axis to another place, which a permutation of the axes should do."""
    calls = [call for call in exam.passed.flow.calls if call.name in _RESHAPES and call.is_signal and call.reads]
    for call in calls:
        read, shape = call.reads[0][1], call.shape
        moved = moved_axis(read, shape, next((len(y) for y in tensors(exam.targets) if y.dim()), 0))
        if moved is not None:
            where = () if call.path == LOSS else (call.place,)
            evidence: Evidence = {"operation": call.name, "before": str(read), "after": str(shape), "size": moved}
            line = f", {call.line}" if call.line else ""
            yield finding("moved_axis", 0.88, where, evidence, place=_named(call), line=line)
            break
    return f"{len(calls)} reshapes"


def _named(call: Call) -> str:
    return "the loss" if call.path == LOSS else call.place


def moved_axis(before: Shape, after: Shape, examples: int = 0) -> int | None:
    """Return the size of an axis that a reshape moves between other values; None if it only splits and merges axes.

    A reshape from (…, examples, width) to (…, examples · heads, width of a head) merges heads and examples, where the
    width of a head may be the number of examples.
    """
    if any(
        before[:axis] + before[axis : axis + 2][::-1] + before[axis + 2 :] == after
        for axis in range(1, len(before) - 1)
        if examples in before[axis : axis + 2] and max(before[axis : axis + 2]) % examples == 0
    ):
        return None
    for axis, size in enumerate(before):
        if size < 3 or before.count(size) > 1 or after.count(size) != 1:
            continue
        if _span(before, axis) == _span(after, after.index(size)):
            continue
        # Relative positions are shifted by a reshape from (…, n, n + 1) to (…, n + 1, n).
        if len(before) == len(after) and any(abs(size - other) == 1 for other in before):
            continue
        return size
    return None


def _span(shape: Shape, axis: int) -> tuple[int, int]:
    """Return the number of values after an axis, and after and on it."""
    sizes = [1, *accumulate(reversed(shape), mul)]
    return sizes[len(shape) - 1 - axis], sizes[len(shape) - axis]
