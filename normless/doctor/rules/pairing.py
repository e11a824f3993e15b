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
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import LOSS, MOVES, PRODUCTS, Call, tensors
from normless.doctor.facts.influence import with_leaf
from normless.doctor.findings import Evidence, NotAsked, Steps, check, finding
from normless.errors import InputsError
from normless.probes import loss_of

# Losses are equal up to this share of themselves, gradients up to this share of the largest element.
SAME_LOSS, SAME_GRADIENT = 1e-5, 1e-4
# Outputs that differ by less than this share of their size are nearly the same in any order.
APART = 1e-2
# Fewer examples may be paired by chance.
SEVERAL = 4
# A loss that calls one of these may compare all pairs on purpose: contrastive losses, distances of distributions.
_SELECTS = {"min", "max", "amin", "amax"}
_ALL_PAIRS = PRODUCTS | {"cdist", "pdist", "sort", "argsort", "cov", "corrcoef", "topk", "ctc_loss"}


@dataclass(frozen=True)
class _Value:
    """A loss, and its gradient with respect to the outputs."""

    loss: float
    gradient: Tensor

    def is_as(self, other: _Value) -> bool:
        """Whether another value is the same up to rounding."""
        size = float(self.gradient.abs().max())
        apart = abs(self.loss - other.loss)
        has_same_loss = apart <= SAME_LOSS * max(abs(self.loss), abs(other.loss)) + 1e-7
        return has_same_loss and float((self.gradient - other.gradient).abs().max()) <= SAME_GRADIENT * size + 1e-10


@check("pairing of outputs and targets")
def check_pairing(exam: Examination) -> Steps:
    """Permute a tensor of the targets, or the outputs, along the batch: the loss or its gradient should change."""
    count = len(exam.passed.logits) if exam.passed.logits.dim() else 0
    paired = [t for t in tensors(exam.targets) if t.dim() and len(t) == count >= SEVERAL]
    if not paired or exam.passed.error is not None or not isfinite(exam.passed.loss):
        raise NotAsked("there are no targets of single examples")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(4))
    before = _value(exam, exam.passed.output, exam.targets)
    if before is None or not (again := _value(exam, exam.passed.output, exam.targets)) or not before.is_as(again):
        raise NotAsked("the loss draws random numbers, or has no gradient")
    informs = False
    for number, target in enumerate(tensors(exam.targets)):
        read = _reader(exam, target)
        moved = target[order.to(target.device)] if target.dim() and len(target) == count else target
        if read is None or torch.equal(moved, target):
            continue
        constant = _value(exam, exam.passed.output, with_leaf(exam.targets, number, target[:1].expand_as(target)))
        is_used = constant is not None and not before.is_as(constant)
        informs |= is_used
        after = _value(exam, exam.passed.output, with_leaf(exam.targets, number, moved))
        if after is not None and before.is_as(after) and (is_used or target.is_floating_point()):
            what = "target" if len(tensors(exam.targets)) == 1 else f"value of target {number + 1}"
            yield _finding(exam, before, read, what, target, is_used)
            return f"{what}: the loss does not use it by example"
    logits = exam.passed.logits.detach().double()
    differ = float((logits - logits.mean(0)).abs().max()) > APART * float(logits.abs().max())
    outputs = tree_map(lambda value: _moved(value, order, count), exam.passed.output)
    after = _value(exam, outputs, exam.targets) if informs and differ else None
    if after is not None and abs(after.loss - before.loss) <= SAME_LOSS * abs(before.loss):
        target = next(target for target in paired if _reader(exam, target) is not None)
        yield _finding(exam, before, _reader(exam, target), "target", target, is_used=True)
        return "the loss is the same for outputs in another order"
    return "the loss changes if targets change places"


def _value(exam: Examination, output: Any, targets: Any) -> _Value | None:
    """Return the loss of outputs and targets with its gradient; None if it cannot be computed."""

    def fresh(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        copy = value.detach().clone()
        return copy.requires_grad_() if copy.is_floating_point() else copy

    leaves = tree_map(fresh, output)
    wanted = [leaf for leaf in tensors(leaves) if leaf.requires_grad]
    with suppress(InputsError, RuntimeError, ValueError, TypeError, IndexError):
        with torch.enable_grad(), quiet(), preserve_random_state():
            loss = loss_of(exam.loss, leaves, exam.inputs, tree_map(_copy, targets))
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        pairs = zip(gradients, wanted, strict=True)
        flat = [torch.zeros_like(leaf) if gradient is None else gradient for gradient, leaf in pairs]
        return _Value(float(loss.detach()), torch.cat([part.reshape(-1).double() for part in flat]))
    return None


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _moved(value: Any, order: Tensor, count: int) -> Any:
    has_rows = isinstance(value, Tensor) and value.dim() and len(value) == count
    return value[order.to(value.device)] if has_rows else value


def _reader(exam: Examination, target: Tensor) -> Call | None:
    """Return the first call of the loss that computes with a target."""
    given = exam.passed.flow.of(target)
    in_loss = (call for call in exam.passed.flow.calls if call.path == LOSS and call.name not in MOVES)
    return next((call for call in in_loss if any(source.origin() is given for source in call.sources())), None)


def _finding(exam: Examination, value: _Value, read: Call | None, what: str, target: Tensor, is_used: bool) -> Any:
    """Return the finding, advice for losses that may compare all pairs on purpose."""
    count = len(target)
    in_loss = [call for call in exam.passed.flow.calls if call.path == LOSS]
    # A result with two axes of examples is that of all pairs.
    pairs = next((call for call in in_loss if call.shape.count(count) > 1), read)
    line = f", at {pairs.line}" if pairs is not None and pairs.line is not None else ""
    evidence: Evidence = {
        "loss": value.loss,
        "targets": str(tuple(target.shape)),
        "outputs": str(tuple(exam.passed.logits.shape)),
        "line": str(pairs.line) if pairs is not None and pairs.line is not None else "the loss",
    }
    found = finding("unpaired_targets" if is_used else "unread_targets", 0.965, (), evidence, what=what, at=line)
    return replace(found, advice=any(call.is_trained and _compares_all(call) for call in in_loss))


def _compares_all(call: Call) -> bool:
    """Whether a call may compare all pairs on purpose, or selects among them."""
    selects = call.name in _SELECTS and bool(call.reads) and prod(call.shape) < prod(call.reads[0][1])
    return call.name in _ALL_PAIRS or selects
