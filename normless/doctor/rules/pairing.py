"""A check of the pairing of outputs and targets: whether the loss uses which output belongs to which target."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless._internal.state import preserve_random_state, quiet
from normless.doctor.facts.changes import with_leaf
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, MOVES, PRODUCTS, Call, tensors, with_rows
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding
from normless.errors import InputsError
from normless.probes import loss_of

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

    def is_as(self, other: _Value, *others: _Value) -> bool:
        """Whether another value is the same up to rounding, which grows with the sizes of these and of others."""
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


@check("pairing of outputs and targets")
def check_pairing(exam: Examination) -> Steps:
    """Permute a tensor of the targets, or the outputs, along the batch: the loss or its gradient should change."""
    count = len(exam.passed.logits) if exam.passed.logits.dim() else 0
    targets = tensors(exam.targets)
    if not any(target.dim() and len(target) == count >= SEVERAL for target in targets):
        raise NotAsked("there are no targets of single examples")
    if exam.passed.error is not None or not isfinite(exam.passed.loss):
        raise NotAsked("the loss is not finite")
    if max(tensor.numel() for tensor in (*tensors(exam.passed.output), *targets)) > MANY:
        raise NotAsked(f"the outputs have more than {MANY:.0e} values")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(4)).tolist()
    before = _value(exam, exam.passed.output, exam.targets)
    if before is None or not (again := _value(exam, exam.passed.output, exam.targets)) or not before.is_as(again):
        raise NotAsked("the loss draws random numbers, or has no gradient")
    used: tuple[Tensor, Call, _Value] | None = None
    for number, target in enumerate(targets):
        if torch.equal(with_rows(target, count, order), target):
            continue
        what = "target" if len(targets) == 1 else f"value of target {number + 1}"
        read = _reader(exam, target)
        if read is None:
            if len(targets) == 1 and _is_asked(exam, target):
                yield _finding(exam, before, None, what, target, "unread_targets")
                return "the loss does not read them"
            continue
        others = (
            [target[:1].expand_as(target), target * 2] if target.is_floating_point() else [target * 0 + target[:1]]
        )
        known = (_value(exam, exam.passed.output, with_leaf(exam.targets, number, other)) for other in others)
        other = next((value for value in known if value is not None), None)
        if other is None:
            continue
        is_used = not before.is_as(other)
        reaches_all = all(bool(part.any()) for part in before.gradients)
        is_unpaired = _stays(exam, number, order, other) if is_used or target.is_floating_point() else False
        if is_unpaired and (is_used or reaches_all):
            yield _finding(exam, before, read, what, target, "unpaired_targets" if is_used else "unread_targets")
            return f"{what}: the loss does not use it by example"
        used = (target, read, other) if is_used else used
    logits = exam.passed.logits.detach().double()
    differ = float((logits - logits.mean(0)).abs().max()) > APART * float(logits.abs().max())
    if used is not None and differ:
        moved = _value(exam, with_rows(exam.passed.output, count, order), exam.targets)
        if moved is not None and before.in_order(order).is_as(moved, used[2]):
            yield _finding(exam, before, used[1], "target", used[0], "unpaired_targets")
            return "the loss is the same for outputs in another order"
    return "the loss changes if targets change places"


def _stays(exam: Examination, number: int, order: list[int], other: _Value) -> bool:
    """Whether a loss stays if a target's examples change places, at the outputs and at others around the targets.

    Far from its targets an absolute error is linear, and its gradient the same for all of them.
    """
    target = tensors(exam.targets)[number]
    moved = with_leaf(exam.targets, number, with_rows(target, len(order), order))
    size = float(target.double().square().mean().sqrt()) if target.is_floating_point() else 1.0
    generator = torch.Generator().manual_seed(5)

    def spread(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=generator).to(value)
        return value.detach() + max(size, float(value.detach().std())) * noise

    for output in (exam.passed.output, tree_map(spread, exam.passed.output)):
        values = (_value(exam, output, targets) for targets in (exam.targets, moved))
        before, after = values
        if before is not None and after is not None and not before.is_as(after, other):
            return False
    return True


def _value(exam: Examination, output: Any, targets: Any) -> _Value | None:
    """Return the loss of outputs and targets and its gradients; None if they cannot be computed or are not finite."""
    for dtype in (torch.float64, torch.float32):

        def fresh(value: Any, dtype: torch.dtype = dtype) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.detach().to(dtype, copy=True) if value.is_floating_point() else value.detach().clone()

        leaves = tree_map(fresh, output)
        wanted = [leaf.requires_grad_() for leaf in tensors(leaves) if leaf.is_floating_point()]
        with suppress(InputsError, RuntimeError, ValueError, TypeError, IndexError):
            with torch.enable_grad(), quiet(), preserve_random_state():
                loss = loss_of(exam.loss, leaves, exam.inputs, tree_map(fresh, targets))
            gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
            pairs = zip(gradients, wanted, strict=True)
            parts = tuple(torch.zeros_like(leaf) if part is None else part for part, leaf in pairs)
            is_finite = bool(loss.isfinite()) and all(bool(part.isfinite().all()) for part in parts)
            return _Value(float(loss.detach()), parts, dtype) if is_finite else None
    return None


def _is_asked(exam: Examination, target: Tensor) -> bool:
    """Whether targets have the outputs' shape and are none of the inputs, so that the loss should read them."""
    is_like = target.is_floating_point() and target.shape == exam.passed.logits.shape
    return is_like and not any(torch.equal(target, x) for x in tensors(exam.inputs) if x.shape == target.shape)


def _reader(exam: Examination, target: Tensor) -> Call | None:
    """Return the first call of the loss that computes with a target, or selects by it."""
    given = exam.passed.flow.of(target)
    for call in exam.passed.flow.calls:
        origins = [source.origin() for source in call.sources()] if call.path == LOSS else []
        if given in origins and (call.name not in MOVES or origins[0] is not given):
            return call
    return None


def _finding(exam: Examination, value: _Value, read: Call | None, what: str, target: Tensor, kind: str) -> Finding:
    """Return the finding, advice for losses that may compare all pairs on purpose."""
    count = len(target)
    in_loss = [call for call in exam.passed.flow.calls if call.path == LOSS]
    # A result with two axes of examples is that of all pairs.
    pairs = next((call for call in in_loss if call.shape.count(count) > 1), read)
    line = str(pairs.line) if pairs is not None and pairs.line is not None else ""
    evidence: Evidence = {
        "loss": value.loss,
        "targets": str(tuple(target.shape)),
        "outputs": str(tuple(exam.passed.logits.shape)),
        "line": line or "the loss",
    }
    found = finding(kind, (), evidence, what=what, at=f", at {line}" if line else "")
    return replace(found, advice=any(call.is_trained and _compares_all(call) for call in in_loss))


def _compares_all(call: Call) -> bool:
    """Whether a call may compare all pairs on purpose, or selects among them."""
    selects = call.name in _SELECTS and bool(call.reads) and prod(call.shape) < prod(call.reads[0][1])
    return call.name in _ALL_PAIRS or selects
