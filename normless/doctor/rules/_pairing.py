"""A check of the pairing of outputs and targets: whether the loss uses which output belongs to which target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless.doctor._findings import Finding, FindingEvidence, NotAsked, Steps, check, finding
from normless.doctor.facts._examination import Examination
from normless.doctor.facts._flow import MOVES, PRODUCTS, TensorCall
from normless.doctor.facts._tracer import REFUSED, tensors, with_leaf, with_rows
from normless.probes.hooks._losses import loss_of
from normless.state import preserve_random_state, quiet

# Losses and gradients are the same up to this share of the largest ones, by the type in which a loss takes outputs.
SAME = {torch.float64: 1e-9, torch.float32: 1e-5}
# Outputs that differ by less than this share of their size are nearly the same in any order.
APART = 1e-2
# Fewer examples may be paired by chance; of more values several copies in float64 would take much memory.
SEVERAL, MANY = 4, 10**7
# A loss that calls one of these may compare all pairs on purpose: contrastive losses, distances of distributions.
_SELECTS = {"min", "max", "amin", "amax"}
_ALL_PAIRS = PRODUCTS | {"cdist", "pdist", "sort", "argsort", "cov", "corrcoef", "topk", "ctc_loss"}


@dataclass(frozen=True)
class _Value:
    """A finite loss, its gradients with respect to the outputs, and the type of these."""

    loss: float
    gradients: tuple[Tensor, ...]
    dtype: torch.dtype

    def is_as(self, other: _Value | None, *others: _Value) -> bool:
        """Whether another value is the same up to rounding, which grows with the sizes of these and of others."""
        if other is None:
            return False
        every = (self, other, *others)
        share = max(SAME[value.dtype] for value in every)
        largest = max(abs(value.loss) for value in every)
        steepest = max(float(part.abs().max()) for value in every for part in value.gradients)
        pairs = zip(self.gradients, other.gradients, strict=True)
        apart = max(float((own - its).abs().max()) for own, its in pairs)
        return abs(self.loss - other.loss) <= share * largest and apart <= 10 * share * steepest

    def in_order(self, order: list[int]) -> _Value:
        """Return the value with the gradients of the examples in another order."""
        return replace(self, gradients=with_rows(self.gradients, len(order), order))


@check("pairing of outputs and targets", needs="pass")
def check_pairing(exam: Examination) -> Steps:
    """Permute a tensor of the targets, or the outputs, along the batch: the loss or its gradient should change."""
    count, targets, output = len(exam.logits) if exam.logits.dim() else 0, exam.labels, exam.passed.output
    if not any(target.dim() and len(target) == count >= SEVERAL for target in targets):
        raise NotAsked("there are no targets of single examples")
    if not isfinite(exam.passed.loss):
        raise NotAsked("the loss is not finite")
    if max(tensor.numel() for tensor in (*tensors(output), *targets)) > MANY:
        raise NotAsked(f"the outputs have more than {MANY:.0e} values")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(4)).tolist()
    before = _value(exam, output, exam.targets)
    if before is None or not before.is_as(_value(exam, output, exam.targets)):
        raise NotAsked("the loss draws random numbers, or has no gradient")
    reaches_all = all(bool(part.any()) for part in before.gradients)
    used: tuple[Tensor, TensorCall, _Value] | None = None
    for number, target in enumerate(targets):
        if torch.equal(with_rows(target, count, order), target):
            continue
        what = "target" if len(targets) == 1 else f"value of target {number + 1}"
        read = _reader(exam, target)
        if read is None:
            # Targets of the outputs' shape that are none of the inputs should be read.
            is_like = target.is_floating_point() and target.shape == exam.logits.shape
            is_input = any(torch.equal(target, x) for x in exam.given if x.shape == target.shape)
            if len(targets) == 1 and is_like and not is_input:
                yield _finding(exam, before, None, what, target, "unread_targets")
                return "the loss does not read them"
            continue
        changed = (_value(exam, output, with_leaf(exam.targets, number, other)) for other in _others(target))
        if (other := next(filter(None, changed), None)) is None:
            continue
        is_used = not before.is_as(other)
        asked = is_used or (target.is_floating_point() and reaches_all)
        if asked and _stays(exam, number, order, other):
            yield _finding(exam, before, read, what, target, "unpaired_targets" if is_used else "unread_targets")
            return f"{what}: the loss does not use it by example"
        used = (target, read, other) if is_used else used
    logits = exam.logits.double()
    differ = float((logits - logits.mean(0)).abs().max()) > APART * float(logits.abs().max())
    if used is not None and differ:
        moved = _value(exam, with_rows(output, count, order), exam.targets)
        if before.in_order(order).is_as(moved, used[2]):
            yield _finding(exam, before, used[1], "target", used[0], "unpaired_targets")
            return "the loss is the same for outputs in another order"
    return "the loss changes if targets change places"


def _others(target: Tensor) -> Iterator[Tensor]:
    """Return other values of a target, of which a loss may refuse some."""
    yield target[:1].expand_as(target) if target.is_floating_point() else target * 0 + target[:1]
    if target.is_floating_point():
        yield target * 2


def _stays(exam: Examination, number: int, order: list[int], other: _Value) -> bool:
    """Whether a loss stays if a target's examples change places, at the outputs and at others around the targets.

    Far from its targets an absolute error is linear, and its gradient the same for all of them.
    """
    target = exam.labels[number]
    moved = with_leaf(exam.targets, number, with_rows(target, len(order), order))
    size = float(target.double().square().mean().sqrt()) if target.is_floating_point() else 1.0
    generator = torch.Generator().manual_seed(5)

    def spread(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=generator).to(value)
        return value.detach() + max(size, float(value.detach().std())) * noise

    for output in (exam.passed.output, tree_map(spread, exam.passed.output)):
        before, after = (_value(exam, output, targets) for targets in (exam.targets, moved))
        if before is not None and after is not None and not before.is_as(after, other):
            return False
    return True


def _value(exam: Examination, output: Any, targets: Any) -> _Value | None:
    """Return the loss of outputs and targets and its gradients; None if they cannot be computed or are not finite."""
    for dtype in SAME:

        def fresh(value: Any, dtype: torch.dtype = dtype) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().to(dtype if value.is_floating_point() else value.dtype, copy=True)

        leaves = tree_map(fresh, output)
        wanted = [leaf.requires_grad_() for leaf in tensors(leaves) if leaf.is_floating_point()]
        with suppress(*REFUSED):
            with torch.enable_grad(), quiet(), preserve_random_state():
                loss = loss_of(exam.loss, leaves, exam.inputs, tree_map(fresh, targets))
            parts = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
            is_finite = bool(loss.isfinite()) and all(bool(part.isfinite().all()) for part in parts)
            return _Value(float(loss.detach()), parts, dtype) if is_finite else None
    return None


def _reader(exam: Examination, target: Tensor) -> TensorCall | None:
    """Return the first call of the loss that computes with a target, or selects by it."""
    given = exam.flow.of(target)
    for call in exam.in_loss:
        origins = [source.origin() for source in call.sources()]
        if given in origins and (call.name not in MOVES or origins[0] is not given):
            return call
    return None


def _finding(
    exam: Examination, value: _Value, read: TensorCall | None, what: str, target: Tensor, kind: str
) -> Finding:
    """Return the finding, advice for losses that may compare all pairs on purpose."""
    # A result with two axes of examples is that of all pairs.
    pairs = next((call for call in exam.in_loss if call.shape.count(len(target)) > 1), read)
    line = str(pairs.line) if pairs is not None and pairs.line is not None else ""
    shapes = {"targets": str(tuple(target.shape)), "outputs": str(tuple(exam.logits.shape))}
    evidence: FindingEvidence = {"loss": value.loss, **shapes, "line": line or "the loss"}
    advice = any(call.is_trained and _compares_all(call) for call in exam.in_loss)
    return finding(kind, (), evidence, what=what, at=f", at {line}" if line else "", advice=advice)


def _compares_all(call: TensorCall) -> bool:
    """Whether a call may compare all pairs on purpose, or selects among them."""
    selects = call.name in _SELECTS and bool(call.reads) and prod(call.shape) < prod(call.reads[0][1])
    return call.name in _ALL_PAIRS or selects
