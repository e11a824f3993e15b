"""Find the first operation through which a change of some inputs spreads to values that should not depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.state import unfused
from normless.doctor.facts.flow import Call, Tracer
from normless.probes import compute_output, logits_of, preserve_state

# Sums count as equal if they differ by less than this share of the sum of absolute values.
ROUNDING = 1e-6
# Larger values are constants of masks.
HUGE = 1e6
# Values beyond this number are not followed.
MANY = 3 * 10**7

# For each axis of a given length: two sums of the values at each index, and the sum of their sizes.
Sums = list[tuple[Tensor, Tensor]]


def _sums(tensor: Tensor, length: int) -> Sums:
    """Return sums of a tensor for each index of the axes with a given length."""
    x = tensor.detach()
    if x.layout != torch.strided or x.is_complex() or not x.numel() or x.numel() > MANY:
        return []
    x = torch.nan_to_num(x.double())
    # Constants of masks would hide all other values in the sums.
    x = x.where(x.abs() < HUGE, 0)
    found = []
    for axis, size in enumerate(x.shape):
        if size % length:
            continue
        shape, rest = x.shape, size // length
        parts = [x.reshape(*shape[:axis], *split, *shape[axis + 1 :]) for split in ((length, rest), (rest, length))]
        for offset, part in enumerate(parts[: 1 if size == length else 2]):
            found.append(_summed(part.movedim(axis + offset, 0)))
    return found or [_summed(x[None])]


def _summed(x: Tensor) -> tuple[Tensor, Tensor]:
    flat = x.reshape(len(x), -1)
    weights = torch.cos(torch.arange(flat.shape[1], dtype=torch.float64, device=x.device))
    return torch.stack([flat.sum(1), (flat * weights).sum(1)]), flat.abs().sum(1)


def spread_at(
    model: nn.Module, inputs: Any, changed: Any, length: int, kept: Sequence[int], places: Sequence[int] = ()
) -> Call | None:
    """Return the first call through which a change of the inputs reaches kept indices of an axis, on to the logits.

    Args:
        inputs, changed: the inputs, and others that differ from them at other indices than the kept ones.
        length: the length of the axis.
        kept: the indices of results that should not change.
        places: where these results are for the changed inputs; at the same indices if empty.
    """
    first, last = _traced(model, inputs, length)
    second, _ = _traced(model, changed, length)
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


def _traced(model: nn.Module, inputs: Any, length: int) -> tuple[dict[Call, Sums], Call | None]:
    """Return the sums of the first result of each call, and the call that made the logits."""
    sums: dict[Call, Sums] = {}
    tracer = Tracer(lambda seen: sums.update({seen.call: _sums(seen.made[0], length)}))
    with preserve_state(model, training=False), torch.no_grad(), unfused(), tracer.follow(model, inputs):
        logits = logits_of(compute_output(model, inputs))
        return sums, None if logits is None else tracer.flow.of(logits)


def _is_kept(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], index: Tensor, places: Tensor) -> bool:
    """Whether the sums at the kept indices are the same; a value without the axis must be the same as a whole."""
    (one, size), (two, _) = before, after
    if one.shape != two.shape:
        return False
    if one.shape[1] == 1:
        index = places = torch.zeros(1, dtype=torch.long)
    index, places = index.to(one.device), places.to(one.device)
    return bool(((one[:, index] - two[:, places]).abs() <= ROUNDING * size[index] + 1e-30).all())
