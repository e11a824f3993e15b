"""Change inputs, and find the outputs that change and the first operation through which the change spreads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import nan
from typing import Any

import torch
from torch import Tensor

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import Call
from normless.doctor.facts.relations import IGNORED
from normless.doctor.facts.tracer import REFUSED, Tracer, with_leaf
from normless.probes import logits_of

# Sums count as equal if they differ by less than this share of the sum of absolute values.
ROUNDING = 1e-6
# Larger values are constants of masks.
HUGE = 1e6
# Values beyond this number are not followed.
MANY = 3 * 10**7


def altered(tensor: Tensor, places: Tensor, among: Tensor | None = None) -> Tensor:
    """Return a copy of a tensor with other values, of the same tensor or those given, at some flat indices."""
    values = torch.unique((tensor if among is None else among).detach())
    values = values[values != IGNORED]
    flat = tensor.detach().clone().reshape(-1)
    places = places.to(tensor.device)
    rank = torch.searchsorted(values, flat[places].contiguous())
    # The values that are half of all away, so that numbers change by much.
    flat[places] = values[(rank.clamp_max(len(values) - 1) + max(1, len(values) // 2)) % len(values)]
    return flat.view(tensor.shape)


def change_of(exam: Examination, inputs: Any) -> Tensor:
    """Return by how much each output in evaluation mode differs for other inputs; NaN if they cannot be compared."""
    before = exam.evaluated
    with suppress(*REFUSED):
        after = exam.evaluate(inputs)
        if after.shape == before.shape:
            return (after - before).abs()
    return torch.full_like(before, nan)


def change_at(exam: Examination, number: int, places: Tensor | None = None, among: Tensor | None = None) -> Tensor:
    """Return the change of the outputs if an input has other values at some flat indices, or everywhere."""
    x = exam.given[number]
    places = torch.arange(x.numel()) if places is None else places
    with suppress(*REFUSED):
        return change_of(exam, with_leaf(exam.inputs, number, altered(x, places, among)))
    return torch.full_like(exam.evaluated, nan)


def spread_at(
    exam: Examination, inputs: Any, changed: Any, length: int, kept: Sequence[int], places: Sequence[int] = ()
) -> Call | None:
    """Return the first call through which a change of the inputs reaches kept indices of an axis, on to the logits.

    Args:
        inputs, changed: the inputs, and others that differ from them at other indices than the kept ones.
        length: the length of the axis.
        kept: the indices of results that should not change.
        places: where these results are for the changed inputs; at the same indices if empty.
    """
    first, last = _traced(exam, inputs, length)
    second, _ = _traced(exam, changed, length)
    if last is None or [call.name for call in first] != [call.name for call in second]:
        return None
    index, other = torch.tensor(list(kept)), torch.tensor(list(places or kept))
    reached = {
        call
        for (call, before), after in zip(first.items(), second.values(), strict=True)
        if before and not any(_is_kept(one, two, index, other) for one, two in zip(before, after, strict=True))
    }
    # The path back from the logits ends at the call that reads nothing which was reached.
    seen = {*last.reached(lambda call: call not in reached)}
    return next((call for call in first if call in seen), None)


def _traced(exam: Examination, inputs: Any, length: int) -> tuple[dict[Call, list[Tensor]], Call | None]:
    """Return the sums of the first result of each call, and the call that made the logits."""
    sums: dict[Call, list[Tensor]] = {}
    tracer = Tracer(lambda seen: sums.update({seen.call: _sums(seen.made[0], length)}))
    logits = logits_of(exam.run(inputs, tracer=tracer))
    return sums, None if logits is None else tracer.flow.of(logits)


def _sums(tensor: Tensor, length: int) -> list[Tensor]:
    """Return two sums of the values and that of their sizes, at each index of the axes of a given length."""
    x = tensor.detach()
    if x.layout != torch.strided or x.is_complex() or not x.numel() or x.numel() > MANY:
        return []
    x = torch.nan_to_num(x.double())
    # Constants of masks would hide all other values in the sums.
    x = x.where(x.abs() < HUGE, 0)
    parts = [
        x.reshape(*x.shape[:axis], before, length, -1, *x.shape[axis + 1 :]).movedim(axis + 1, 0)
        for axis, size in enumerate(x.shape)
        for before in ({1, size // length} if size % length == 0 else ())
    ]
    found = []
    for flat in (part.reshape(len(part), -1) for part in parts or [x[None]]):
        weights = torch.cos(torch.arange(flat.shape[1], dtype=torch.float64, device=x.device))
        found.append(torch.stack([flat.sum(1), (flat * weights).sum(1), flat.abs().sum(1)]))
    return found


def _is_kept(before: Tensor, after: Tensor, index: Tensor, places: Tensor) -> bool:
    """Whether the sums at the kept indices are the same; a value without the axis must be the same as a whole."""
    if before.shape != after.shape:
        return False
    if before.shape[1] == 1:
        index = places = torch.zeros(1, dtype=torch.long)
    one, two = before[:, index.to(before.device)], after[:, places.to(after.device)]
    return bool(((one - two)[:2].abs() <= ROUNDING * one[2] + 1e-30).all())
