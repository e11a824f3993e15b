"""Checks of information that never reaches the output: through one number, of the order, and of the first steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations
from math import inf, prod
from operator import is_

import torch
from torch import Tensor, nn

from normless.doctor.facts.changes import change_of
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import Call
from normless.doctor.findings import Evidence, Finding, NotAsked, Steps, check, finding
from normless.doctor.rules.trials import HALF, is_fitted, is_slow, trial_with
from normless.doctor.rules.unread import unread_parts

# Outputs count as equal if they differ by less than this share of the differences between examples.
EQUAL = 1e-4
# A path of one number suffices for outputs with fewer values for each example.
SEVERAL = 3
# Sequences of at least this length are judged, by this share of their steps at either end.
LENGTH, SHARE = 20, 0.25
# The influence of the first steps is that of the last ones times a factor beyond this one.
FACTOR = 1e4
_OF_ATTENTION = {"softmax", "multi_head_attention_forward"}


@check("information")
def check_information(exam: Examination) -> Steps:
    """Look for a layer of one unit that everything passes, and for outputs that ignore the order of a sequence."""
    narrow = _narrow(exam)
    if narrow is not None:
        # An autoencoder of one dimension is a choice, if it can be fitted.
        yield finding("one_unit", narrow.where, {"outputs": prod(exam.logits.shape[1:])}, advice=is_fitted(exam))
    yield from _unordered(exam)
    is_missed = exam.knows("not_fitted") or exam.knows("cancelled_gradient")
    given = ((number, x) for number, x in enumerate(exam.given) if x.dim() and x.is_floating_point())
    for (first, x), (second, y) in combinations(given, 2):
        if x.shape == y.shape and x.data_ptr() != y.data_ptr() and torch.equal(x, y):
            yield finding("equal_inputs", (), {"first": first, "second": second}, advice=not is_missed)
    yield from unread_parts(exam)
    return "one number" if narrow is not None else "no layer of one unit is passed by everything"


def _narrow(exam: Examination) -> Call | None:
    """Return the weight layer with one output for each example through which all inputs reach the outputs."""
    logits, last = exam.logits, exam.last
    if logits.dim() < 2 or logits[0].numel() < SEVERAL:
        return None
    for event in exam.events("weight"):
        shape = event.output.shape
        if len(shape) > 1 and shape[0] == len(logits) and prod(shape[1:]) == 1 and event.call is not last:
            # Values of unknown origin may be inputs.
            around = last.reached(partial(is_, event.call))
            if not any(other.kind in ("inputs", "unknown") for other in around):
                return event.call
    return None


def _unordered(exam: Examination) -> Iterator[Finding]:
    """Report outputs that do not change if the positions of the inputs are permuted, while the targets may."""
    x = exam.inputs
    if not isinstance(x, Tensor) or x.is_sparse or x.dim() not in (2, 3) or x.shape[1] < SEVERAL or not len(x) > 1:
        return
    attends = any(event.kind == "attention" or event.name in _OF_ATTENTION for event in exam.passed.events)
    is_sequence = attends or any(event.name == "embedding" for event in exam.passed.events)
    if not is_sequence or (x.dim() == 2 and x.is_floating_point()) or exam.evaluated.dim() != 2:
        return
    change = float(change_of(exam, x.flip(1)).max())
    if not change <= EQUAL * exam.apart or not 0 < exam.apart < inf:
        return
    pairs = _same_but_for_order(x, exam.targets)
    evidence = {"positions": x.shape[1], "change": change, "differences": exam.apart, "pairs": pairs}
    # Sets and bags of words have no order; targets that depend on it, or a batch that cannot be fitted, tell.
    may_miss = attends and not x.is_floating_point() and is_slow(exam)
    is_wrong = pairs > 0 or exam.knows("not_fitted") or (may_miss and _is_helped_by_positions(exam))
    yield finding("unordered", (), evidence, grade=pairs > 0, advice=not is_wrong)


def _is_helped_by_positions(exam: Examination) -> bool:
    """Whether trial steps get much lower if each position has a vector of its own, added to its embedding."""

    def add_positions(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
        places = torch.randn(output.shape[1:], generator=torch.Generator().manual_seed(0)).to(output)
        return output + output.detach().std() * places

    before = trial_with(exam)
    with ExitStack() as stack:
        for layer in exam.model.modules():
            if isinstance(layer, nn.Embedding):
                stack.enter_context(layer.register_forward_hook(add_positions))
        return trial_with(exam).end < HALF * before.end


def _same_but_for_order(x: Tensor, y: object) -> int:
    """Count the pairs of neighbours in sorted order that have the same elements and different class labels."""
    if not isinstance(y, Tensor) or y.shape != x.shape[:1] or y.is_floating_point() or x.dim() != 2:
        return 0
    sets: dict[tuple[int, ...], set[int]] = {}
    for row, label in zip(x.sort(1).values.tolist(), y.tolist(), strict=True):
        sets.setdefault(tuple(row), set()).add(label)
    return sum(len(labels) - 1 for labels in sets.values())


@check("gradient through time")
def check_time(exam: Examination) -> Steps:
    """Compare the gradients of the loss with respect to the first and the last steps of the inputs.

    A network that fits the batch, or comes close, does not need the steps that fade.
    """
    ratios = {number: ratio for number, size in exam.influence.items() if (ratio := _ratio(exam, size)) is not None}
    if not ratios:
        raise NotAsked(f"there are no sequences of {LENGTH} steps or more")
    is_stuck = exam.knows("not_fitted")
    for number, ratio in ratios.items() if is_stuck or is_slow(exam) else ():
        if not 1 / FACTOR < ratio < FACTOR:
            evidence: Evidence = {"ratio": max(ratio, 1 / ratio if ratio else inf), "input": number}
            kind = "exploding_through_time" if ratio > 1 else "vanishing_through_time"
            # Slow steps alone do not tell that the first elements matter: a batch may be learned from the last ones.
            yield finding(kind, (), evidence, advice=not is_stuck)
    return f"first steps have {', '.join(f'{ratio:.2g}' for ratio in ratios.values())} times that of the last"


def _ratio(exam: Examination, size: Tensor) -> float | None:
    """Return the influence of the first steps relative to that of the last ones; None if there are no steps."""
    axis = 1 if size.shape[:1] == exam.logits.shape[:1] else 0
    if size.dim() not in (2, 3) or size.shape[axis] < LENGTH:
        return None
    steps = size.movedim(axis, 0).flatten(1).sum(1)
    count = int(SHARE * len(steps))
    first, last = float(steps[:count].max()), float(steps[-count:].max())
    # Inputs that nothing reads are another finding.
    return first / last if last > 0 and first > 0 else None
