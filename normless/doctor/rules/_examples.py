"""Checks of the axes: outputs that depend on other examples or on the place in the batch, and reshapes of axes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import isfinite, nan, prod
from typing import Any

import torch

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._changes import change_of, find_padding, spread_at
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import MOVES, PRODUCTS, TensorCall
from normless.doctor.facts._relations import find_shifted
from normless.doctor.facts._tracer import REFUSED, with_rows
from normless.residual._classify import kind_of
from normless.state import preserve_random_state

# Outputs of an example depend on other examples if they change by more than this share of the largest output.
CHANGED = 1e-4
# From more examples on, a few of them are compared first.
SMALL = 6
# Numbers of examples with which the operation that mixes them is looked for.
FEW = (5, 7, 4, 6, 3, 11)
RESHAPES = {"view", "reshape", "view_as", "reshape_as"}
# The calls by which the nodes of a graph read each other.
GATHERS = {
    "index_select", "getitem", "gather", "take_along_dim", "index_add", "scatter_add", "scatter_reduce", "scatter",
    "index_reduce",
}  # fmt: skip


@check("examples", needs="pass")
def check_examples(exam: Examination) -> Steps:
    """Check whether an example has the same outputs in evaluation mode if all others, and its place, change."""
    read = [tensor for tensor in exam.given if tensor.dim() and tensor.layout == torch.strided]
    count, before = len(read[0]) if read else 0, exam.evaluated
    if count < 3 or not before.dim() or len(before) != count:
        raise NotAsked("there are fewer than three examples, or the outputs have no axis of examples")
    limit, kept = CHANGED * exam.size, count // 2
    independent = "no example depends on another in evaluation mode"
    few = [(kept + 1) % count, (kept + 2) % count, kept]
    if count > SMALL and exam.is_divisible(count) and _change(exam, few, kept) <= limit:
        return independent
    # Outputs for pairs of examples change with the place.
    moves = count not in before.shape[1:]
    change = _change_among_others(exam, count, kept, kept + moves)
    if not change > limit:
        return independent
    if not torch.allclose(exam.evaluate(exam.inputs), exam.evaluate(exam.inputs), rtol=1e-4, atol=limit):
        yield finding("kept_state", (), {"outputs": exam.size})
        return "outputs of two passes over the same batch differ, so that examples cannot be compared"
    if not moves or _change_among_others(exam, count, kept, kept) > limit:
        yield from _mixed(exam, count, {"change": change, "outputs": exam.size})
        return "they depend on each other, or axis 0 does not hold the examples"
    with preserve_random_state(exam.model):
        torch.manual_seed(1)
        is_random = not torch.allclose(exam.evaluate(exam.inputs), exam.evaluated)
    if sum(len(tensor) == count for tensor in read) == 1 and not is_random:
        rows = list(range(count))
        call = spread_at(exam, exam.inputs, with_rows(exam.inputs, count, rows[::-1]), count, rows, rows[::-1])
        yield finding("place_in_batch", [call.place if call else "forward"], {"change": change}, **_at(call))
    return independent


def _replaced(count: int, kept: int, place: int) -> list[int]:
    """Return rows of a batch with the kept example at a place, and two others in turn at all other places."""
    rows = [(kept + 1 + row % 2) % count for row in range(count)]
    rows[place] = kept
    return rows


def _change(exam: Examination, rows: list[int], kept: int) -> float:
    """Return the change of the kept example's outputs in a batch of other rows; NaN if it is unknown."""
    before, place = exam.evaluated, rows.index(kept)
    with suppress(*REFUSED):
        after = exam.evaluate(with_rows(exam.inputs, len(before), rows))
        if after.shape == (len(rows), *before.shape[1:]):
            own, others = after[place], before[kept]
            if len(before) in own.shape:
                axis = own.shape.index(len(before))
                own, others = own.select(axis, place), others.select(axis, kept)
            return float((own - others).abs().max())
    return nan


def _change_among_others(exam: Examination, count: int, kept: int, place: int) -> float:
    """Return the change of the kept example's outputs at a place if all others change, or else if the first does."""
    if isfinite(change := _change(exam, _replaced(count, kept, place), kept)):
        return change
    # Some inputs belong in an order, such as sequences by length.
    return float(change_of(exam, with_rows(exam.inputs, count, [1, *range(1, count)]))[1:].max())


def _at(call: TensorCall | None) -> dict[str, Any]:
    """Return a call in words, for the titles of findings."""
    return {"at": "" if call is None else f", at {call.name}{call.words['at']}"}


def _mixed(exam: Examination, count: int, evidence: FindingEvidence) -> Iterator[Finding]:
    """Report examples that depend on each other, with the first operation that mixes them."""
    if _has_positions_first(exam) or _is_graph(exam, call := _mixing(exam, count), count):
        return
    path = "" if call is None else call.path
    is_norm = call is not None and (call.layer == "norm" or kind_of(exam.model.get_submodule(path)) == "norm")
    kind = "mixes_by_norms" if is_norm else "mixes_examples"
    where = [call.place if call else "forward"]
    yield finding(kind, where, evidence, advice=_is_meant(call), **_at(call))


def _is_meant(call: TensorCall | None) -> bool:
    """Whether a call reads a batch to which an axis before the examples was added, as one sequence of all of them."""
    read = None if call is None else next(call.sources(), None)
    while read is not None and read.name in MOVES and read.reads:
        source, before = read.reads[0]
        if read.name in ("unsqueeze", "__getitem__", "expand") and read.shape == (1, *before):
            return True
        read = source
    return False


def _has_positions_first(exam: Examination) -> bool:
    """Whether axis 0 holds positions: targets are shifted along it, or sequences end in padding along it."""
    if any(found.axis == 0 and found.shift for y in exam.labels for found in find_shifted(y, exam.given)):
        return True
    tokens = [x for x in exam.given if x.dim() == 2 and x.dtype == torch.int64]
    return any(any(find_padding([x.t()])) and not any(find_padding([x])) for x in tokens)


def _mixing(exam: Examination, count: int) -> TensorCall | None:
    """Return the first operation through which examples influence each other, or None if unknown."""
    others = {size for tensor in exam.given for size in tensor.shape[1:]}
    for number in (*(few for few in FEW if few < count and few not in others), count):
        # The other inputs may not fit fewer examples.
        with suppress(*REFUSED):
            inputs = with_rows(exam.inputs, count, list(range(number)))
            changed = with_rows(inputs, number, _replaced(number, number // 2, number // 2))
            if (call := spread_at(exam, inputs, changed, number, (number // 2,))) is not None:
                return call
    return None


def _is_graph(exam: Examination, mixing: TensorCall | None, count: int) -> bool:
    """Whether examples are nodes: they read each other by indices that are data, or by a matrix of all pairs.

    The matrix does not depend on parameters.
    """
    calls = [call for call in exam.flow.calls if not call.in_loss]
    places = [call.path for call in calls if call.plain in GATHERS and call.is_indexed]
    for call in calls:
        factors = (shape for read, shape in call.reads if read.kind != "unknown" and not read.is_trained)
        if call.name in PRODUCTS and any(shape[-2:] == (count, count) for shape in factors):
            places.append(call.path)
    return bool(places) and (mixing is None or mixing.path in places)


@check("reshapes", needs="pass")
def check_reshapes(exam: Examination) -> Steps:
    """Look for a reshape that moves an axis to another place, which a permutation of the axes should do."""
    calls = [call for call in exam.flow.calls if call.name in RESHAPES and call.is_signal and call.reads]
    examples = next((len(y) for y in exam.labels if y.dim()), 0)
    for call in calls:
        before, after = call.reads[0][1], call.shape
        moved = _moved_axis(before, after, examples)
        if moved is not None:
            evidence: FindingEvidence = {
                "operation": call.name,
                "before": str(before),
                "after": str(after),
                "size": moved,
            }
            yield finding("moved_axis", call.where, evidence, **call.words)
            break
    return f"{len(calls)} reshapes"


def _moved_axis(before: tuple[int, ...], after: tuple[int, ...], examples: int) -> int | None:
    """Return the size of an axis that a reshape moves between other values; None if it only splits and merges axes.

    A reshape from (…, examples, width) to (…, examples · heads, width of a head) merges heads and examples, where the
    width of a head may be the number of examples.
    """
    for axis in range(1, len(before) - 1):
        pair = before[axis : axis + 2]
        swapped = before[:axis] + pair[::-1] + before[axis + 2 :]
        if after == swapped and examples in pair and max(pair) % examples == 0:
            return None
    for axis, size in enumerate(before):
        if size < 3 or before.count(size) > 1 or after.count(size) != 1:
            continue
        # Relative positions are shifted by a reshape from (…, n, n + 1) to (…, n + 1, n).
        is_shift = len(before) == len(after) and any(abs(size - other) == 1 for other in before)
        # An axis stays in its place if as many values as before follow it.
        if not is_shift and prod(before[axis + 1 :]) != prod(after[after.index(size) + 1 :]):
            return size
    return None
