"""Change inputs, and find what changes; the influence of each element of the inputs, and those that are padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor

from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import TensorCall
from normless.doctor.facts._relations import IGNORED
from normless.doctor.facts._tracer import REFUSED, Seen, Tracer, tensors, with_leaf
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.probes.hooks._watcher import logits_of
from normless.state import preserve_state, unfused

# Sums count as equal if they differ by less than this share of the sum of absolute values.
ROUNDING = 1e-6
# Larger values are constants of masks.
HUGE = 1e6
# Values beyond this number are not followed.
MANY = 3 * 10**7
# Sequences of this length or longer may be padded.
SHORTEST = 4


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
) -> TensorCall | None:
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


def _traced(exam: Examination, inputs: Any, length: int) -> tuple[dict[TensorCall, list[Tensor]], TensorCall | None]:
    """Return the sums of the first result of each call, and the call that made the logits."""
    sums: dict[TensorCall, list[Tensor]] = {}
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


def influence_of(exam: Examination) -> dict[int, Tensor]:
    """Return the size of the gradient of the loss in evaluation with respect to inputs, by their numbers.

    Integers have the gradient of their embeddings; without one they are left out.
    """
    inputs = exam.inputs
    for number, x in enumerate(exam.given):
        if x.is_floating_point() and x.layout == torch.strided:
            inputs = with_leaf(inputs, number, x.detach().clone().requires_grad_())
    leaves = tensors(inputs)
    # The indices and the results of embeddings.
    embedded: list[tuple[Tensor, Tensor]] = []

    def note(seen: Seen) -> None:
        if seen.call.name == "embedding" and isinstance(index := seen.given("input", 0), Tensor):
            embedded.append((index, seen.made[0].requires_grad_()))

    found: dict[int, Tensor] = {}
    # Layers of torch on a card refuse a backward pass in evaluation, and code that writes to its inputs a gradient.
    with suppress(*REFUSED), preserve_state(exam.model, training=False), unfused(), torch.enable_grad():
        with Tracer(note).follow(exam.model, inputs):
            output = compute_output(exam.model, inputs)
        floats = {number: x for number, x in enumerate(leaves) if x.requires_grad}
        wanted = [*floats.values(), *(made for _, made in embedded)]
        if (value := _value(exam, output, inputs)) is None or not wanted:
            return {}
        gradients = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
        found = {number: gradient.detach().abs() for number, gradient in zip(floats, gradients, strict=False)}
        for (index, _), gradient in zip(embedded, gradients[len(floats) :], strict=True):
            size = gradient.detach().abs().sum(-1)
            for number, x in enumerate(leaves):
                for shown, back in ((index, size), (index.t(), size.t())) if index.dim() == 2 else ((index, size),):
                    if x.shape == shown.shape and not x.is_floating_point() and torch.equal(x, shown):
                        found[number] = found.get(number, torch.zeros_like(back)) + back
                        break
    return {number: size.double().cpu() for number, size in found.items() if bool(size.isfinite().all())}


def _value(exam: Examination, output: Any, inputs: Any) -> Tensor | None:
    """Return the loss, or a random sum of the logits if the loss cannot be computed."""
    with suppress(*REFUSED):
        loss = loss_of(exam.loss, output, inputs, exam.targets)
        if loss.requires_grad and bool(loss.isfinite()):
            return loss
    logits = logits_of(output)
    if logits is None or not logits.requires_grad:
        return None
    return (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)).sum()


@dataclass(frozen=True)
class Padding:
    """The elements of sequences that are not padding.

    Attributes:
        leaf: the number of the input with the sequences, (examples, positions, …).
        real: which elements are not padding, (examples, positions).
        by: the number of the input that says so, a mask or lengths; None if the tokens do.
    """

    leaf: int
    real: Tensor
    by: int | None


def find_padding(given: list[Tensor]) -> Iterator[Padding]:
    """Find sequences of different lengths, by a mask, by lengths, or by a token at their ends."""
    for leaf, x in enumerate(given):
        is_sequence = x.dim() in (2, 3) and x.layout == torch.strided and x.shape[1] >= SHORTEST and len(x) > 1
        is_number = x.is_floating_point() or x.is_complex()
        if not is_sequence or x.dtype == torch.bool or (x.dim() == 2 and is_number):
            continue
        for by, mask in enumerate(given):
            if by != leaf and (real := _of_mask(mask, x)) is not None:
                yield Padding(leaf, real, by)
        if x.dim() == 2 and (real := _of_tokens(x)) is not None:
            yield Padding(leaf, real, None)


def _of_mask(mask: Tensor, x: Tensor) -> Tensor | None:
    """Return the real elements by a mask with two values or by lengths; None if it is neither."""
    length = x.shape[1]
    mask = mask.detach().cpu()
    if mask.shape == x.shape[:1] and mask.dtype in (torch.int64, torch.int32) and len(torch.unique(mask)) > 1:
        is_length = int(mask.min()) >= 1 and length >= int(mask.max()) > 1
        # The longest sequence is not padded; labels are smaller.
        real = torch.arange(length) < mask[:, None]
        tail = x.detach().cpu().reshape(*x.shape[:2], -1)[~real] if is_length else mask[:0]
        return real if is_length and len(tail) and bool((tail == tail[:1]).all()) else None
    if mask.shape != x.shape[:2] or len(torch.unique(mask)) != 2 or not bool(((mask == 0) | (mask == 1)).all()):
        return None
    real = mask == mask[:, :1]
    is_run = bool((real.int().diff(dim=1) <= 0).all()) and len(torch.unique(mask[:, 0])) == 1
    return real if is_run and not bool(real.all()) else None


def before_end(x: Tensor) -> Tensor:
    """Return which tokens (examples, positions) come before the last run of the token in which most rows end."""
    return (x != x[:, -1].mode().values).flip(1).cummax(1).values.flip(1)


def _of_tokens(x: Tensor) -> Tensor | None:
    """Return the real tokens, if sequences of different lengths end in the same token."""
    x = x.detach().cpu()
    token, real = int(x[:, -1].mode().values), before_end(x)
    lengths = real.sum(1)
    padded = lengths < x.shape[1]
    is_padded = int(padded.sum()) * 4 >= len(x) and len(torch.unique(lengths)) > 2 and int(lengths.min()) > 0
    inner = ((x == token) & real).sum() / max(int(real.sum()), 1)
    runs = (x.shape[1] - lengths)[padded].double().mean()
    return real if is_padded and float(inner) < 0.02 and float(runs) >= 2 else None
