"""The influence of each element of the inputs on the loss, and the elements that are padding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normless._internal.state import unfused
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.tracer import REFUSED, Seen, Tracer, tensors, with_leaf
from normless.probes import compute_output, logits_of, loss_of, preserve_state

# Sequences of this length or longer may be padded.
SHORTEST = 4


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


def _of_tokens(x: Tensor) -> Tensor | None:
    """Return the real tokens, if sequences of different lengths end in the same token."""
    x = x.detach().cpu()
    token = int(x[:, -1].mode().values)
    # From the end, the first other token ends the padding.
    real = (x != token).flip(1).cummax(1).values.flip(1)
    lengths = real.sum(1)
    padded = lengths < x.shape[1]
    is_padded = int(padded.sum()) * 4 >= len(x) and len(torch.unique(lengths)) > 2 and int(lengths.min()) > 0
    inner = ((x == token) & real).sum() / max(int(real.sum()), 1)
    runs = (x.shape[1] - lengths)[padded].double().mean()
    return real if is_padded and float(inner) < 0.02 and float(runs) >= 2 else None
