"""Checks of outputs that depend on other examples of the batch, or on the place of an example in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from normless._internal.state import preserve_random_state
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, MOVES, PRODUCTS, Call, Flow, tensors, with_rows
from normless.doctor.facts.influence import find_padding
from normless.doctor.facts.relations import find_shifted
from normless.doctor.facts.spread import spread_at
from normless.doctor.facts.tape import KINDS
from normless.doctor.findings import Finding, NotAsked, Steps, check, finding
from normless.errors import InputsError
from normless.residual.classify import kind_of

# Outputs of an example depend on other examples if they change by more than this share of the largest output.
CHANGED = 1e-4
# From more examples on, a few of them are compared first.
SMALL = 6
# Numbers of examples with which the operation that mixes them is looked for.
FEW = (5, 7, 4, 6, 3, 11)
# The calls by which the nodes of a graph read each other.
GATHERS = {
    "index_select", "__getitem__", "gather", "take_along_dim", "index_add", "index_add_", "scatter_add",
    "scatter_add_", "scatter_reduce", "scatter_reduce_", "scatter", "scatter_", "index_reduce",
    "index_reduce_",
}  # fmt: skip


@check("examples")
def check_examples(exam: Examination) -> Steps:
    """Check whether an example has the same outputs in evaluation mode if all others, and its place, change."""
    read = [tensor for tensor in tensors(exam.inputs) if tensor.dim() and tensor.layout == torch.strided]
    if not read or len(read[0]) < 3:
        raise NotAsked("there are fewer than three examples")
    count = len(read[0])
    before = exam.evaluated
    if not before.dim() or len(before) != count:
        raise NotAsked("the outputs have no axis of examples")
    size = float(before.abs().max())
    # Outputs for pairs of examples change with the place.
    moves = count not in before.shape[1:]
    kept = count // 2
    if count > SMALL and exam.is_divisible(count) and _is_same_among_few(exam, before, count, kept):
        return "no example depends on another in evaluation mode"
    change = _change(exam, before, count, kept, kept + moves)
    if not change > CHANGED * size:
        return "no example depends on another in evaluation mode"
    if not torch.allclose(exam.evaluate(exam.inputs), exam.evaluate(exam.inputs), rtol=1e-4, atol=CHANGED * size):
        yield finding("kept_state", 0.2, (), {"outputs": size})
        return "outputs of two passes over the same batch differ, so that examples cannot be compared"
    if moves and not _change(exam, before, count, kept, kept) > CHANGED * size:
        if sum(len(tensor) == count for tensor in read) == 1 and not _is_random(exam, before):
            yield _placed(exam, count, change)
        return "no example depends on another in evaluation mode"
    yield from _mixed(exam, count, kept, {"change": change, "outputs": size})
    return "they depend on each other, or axis 0 does not hold the examples"


def _replaced(count: int, kept: int, place: int) -> list[int]:
    """Return rows of a batch with the kept example at a place, and two others in turn at all other places."""
    rows = [(kept + 1 + row % 2) % count for row in range(count)]
    rows[place] = kept
    return rows


def _is_same_among_few(exam: Examination, before: Tensor, count: int, kept: int) -> bool:
    """Whether the kept example has the same outputs at another place, among two others only."""
    with suppress(InputsError, RuntimeError, ValueError, IndexError):
        after = exam.evaluate(with_rows(exam.inputs, count, [(kept + 1) % count, (kept + 2) % count, kept]))
        if after.shape == (3, *before.shape[1:]):
            return float((after[2] - before[kept]).abs().max()) <= CHANGED * float(before.abs().max())
    return False


def _change(exam: Examination, before: Tensor, count: int, kept: int, place: int) -> float:
    """Return the change of the kept example's outputs if all others change."""
    with suppress(InputsError, RuntimeError, ValueError, IndexError):
        after = exam.evaluate(with_rows(exam.inputs, count, _replaced(count, kept, place)))
        if after.shape == before.shape:
            own, others = after[place], before[kept]
            if count in before.shape[1:]:
                axis = before.shape[1:].index(count)
                own, others = own.select(axis, place), others.select(axis, kept)
            change = float((own - others).abs().max())
            if isfinite(change):
                return change
    # Some inputs belong in an order, such as sequences by length.
    after = exam.evaluate(with_rows(exam.inputs, count, [1, *range(1, count)]))
    return float((before - after)[1:].abs().max()) if after.shape == before.shape else 0.0


def _is_random(exam: Examination, before: Tensor) -> bool:
    """Whether outputs in evaluation mode depend on random numbers."""
    with preserve_random_state(exam.model):
        torch.manual_seed(1)
        return not torch.allclose(exam.evaluate(exam.inputs), before)


def _placed(exam: Examination, count: int, change: float) -> Finding:
    """Report outputs that depend on the place of an example, with the first operation that depends on it."""
    kept, places = list(range(count)), list(range(count))[::-1]
    call = spread_at(exam.model, exam.inputs, with_rows(exam.inputs, count, places), count, kept, places)
    where, words = _place(call)
    return finding("place_in_batch", 0.9, where, {"change": change}, at=words)


def _place(call: Call | None) -> tuple[tuple[str, ...], str]:
    """Return the place of a call, and its description for a title."""
    if call is None:
        return ("forward",), ""
    return (call.place,), f", at {call.name}{f', {call.line}' if call.line else ''}"


def _mixed(exam: Examination, count: int, kept: int, evidence: dict[str, float | int | str]) -> Iterator[Finding]:
    """Report examples that depend on each other, with the first operation that mixes them."""
    if _has_positions_first(exam):
        return
    call = _mixing(exam, count, kept)
    if _is_graph(exam.passed.flow, call, count):
        return
    module = dict(exam.model.named_modules()).get(call.path) if call is not None and call.path else None
    is_norm = call is not None and KINDS.get(call.name) == "norm"
    is_norm = is_norm or (module is not None and kind_of(module) == "norm")
    where, words = _place(call)
    found = finding("mixes_by_norms" if is_norm else "mixes_examples", 0.89, where, evidence, at=words)
    yield replace(found, advice=call is not None and _is_meant(call))


def _is_meant(call: Call) -> bool:
    """Whether a call reads a batch to which an axis before the examples was added, as one sequence of all of them."""
    read = next(call.sources(), None)
    while read is not None and read.name in MOVES:
        before = read.reads[0][1]
        if read.name in ("unsqueeze", "__getitem__", "expand") and read.shape == (1, *before):
            return True
        read = next(read.sources(), None)
    return False


def _has_positions_first(exam: Examination) -> bool:
    """Whether axis 0 holds positions: targets are shifted along it, or sequences end in padding along it."""
    given = tensors(exam.inputs)
    if any(found.axis == 0 and found.shift for y in tensors(exam.targets) for found in find_shifted(y, given)):
        return True
    tokens = [x for x in given if x.dim() == 2 and x.dtype == torch.int64]
    return any(any(find_padding([x.t()])) and not any(find_padding([x])) for x in tokens)


def _mixing(exam: Examination, count: int, kept: int) -> Call | None:
    """Return the first operation through which examples influence each other, or None if unknown."""
    others = {size for tensor in tensors(exam.inputs) for size in tensor.shape[1:]}
    for number in (*(few for few in FEW if few < count and few not in others), count):
        # The other inputs may not fit fewer examples.
        with suppress(InputsError, ValueError, RuntimeError, IndexError):
            inputs = with_rows(exam.inputs, count, list(range(number)))
            changed = with_rows(inputs, number, _replaced(number, number // 2, number // 2))
            call = spread_at(exam.model, inputs, changed, number, (number // 2,))
            if call is not None:
                return call
    return None


def _is_graph(flow: Flow, mixing: Call | None, count: int) -> bool:
    """Whether examples are nodes: they read each other by indices that are data, or by a matrix of all pairs."""
    places = [
        call.path
        for call in flow.calls
        if call.path != LOSS
        if (call.name in GATHERS and call.is_indexed) or (call.name in PRODUCTS and _by_pairs(call, count))
    ]
    return bool(places) and (mixing is None or mixing.path in places)


def _by_pairs(call: Call, count: int) -> bool:
    """Whether a product has a factor (examples, examples) that does not depend on parameters."""
    return any(
        shape[-2:] == (count, count) and read is not None and not read.is_trained for read, shape in call.reads
    )
