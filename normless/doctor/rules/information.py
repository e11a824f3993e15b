"""Checks of information that never reaches the output: one number for all of it, and the order of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite, prod

import torch
from torch import Tensor, nn

from normless.doctor.experiments.rates import MANY
from normless.doctor.experiments.steps import fits, tried
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import Call, tensors
from normless.doctor.findings import Finding, Steps, check, finding
from normless.doctor.rules.unread import unread_parts

# Outputs count as equal if they differ by less than this share of the differences between examples.
EQUAL = 1e-4
# A path of one number suffices for outputs with fewer values for each example.
SEVERAL = 3
# A trial that leaves more than this share of the loss is far from fitting the batch.
HALF = 0.5
_OF_ATTENTION = {"softmax", "multi_head_attention_forward"}
_OF_SEQUENCES = _OF_ATTENTION | {"embedding"}


@check("information")
def check_information(exam: Examination) -> Steps:
    """Look for a layer of one unit that everything passes, and for outputs that ignore the order of a sequence."""
    is_fitted = any(fits(exam, trial) for trial in exam.trials)
    narrow = _narrow(exam)
    if narrow is not None:
        values = prod(exam.passed.logits.shape[1:])
        found = finding("one_unit", 0.6, (narrow.place,), {"outputs": values})
        # An autoencoder of one dimension is a choice, if it can be fitted.
        yield replace(found, advice=is_fitted)
    yield from _unordered(exam, is_fitted)
    is_stuck = exam.knows("not_fitted")
    for first, second in _equal_inputs(exam):
        found = finding("equal_inputs", 0.94, (), {"first": first, "second": second})
        yield replace(found, advice=not is_stuck and not exam.knows("cancelled_gradient"))
    for unread in unread_parts(exam):
        yield replace(unread, advice=not is_stuck)
    return "one number" if narrow is not None else "no layer of one unit is passed by everything"


def _narrow(exam: Examination) -> Call | None:
    """Return the weight layer with one output for each example through which all inputs reach the outputs."""
    logits = exam.passed.logits
    last = exam.passed.flow.of(logits)
    if last is None or logits.dim() < 2 or logits[0].numel() < SEVERAL:
        return None
    for event in exam.passed.events:
        call = exam.passed.flow.of(event.output)
        if event.kind != "weight" or call is None or event.output.dim() < 2 or len(event.output) != len(logits):
            continue
        if event.output[0].numel() == 1 and event.output is not logits and not _reaches(last, call):
            return call
    return None


def _equal_inputs(exam: Examination) -> Iterator[tuple[int, int]]:
    """Return the numbers of inputs that have equal values and are not the same tensor."""
    given = [(number, x) for number, x in enumerate(tensors(exam.inputs)) if x.dim() and x.is_floating_point()]
    for place, (number, x) in enumerate(given):
        for other, y in given[place + 1 :]:
            if x.shape == y.shape and x.data_ptr() != y.data_ptr() and torch.equal(x, y):
                yield number, other


def _reaches(last: Call, without: Call) -> bool:
    """Whether the inputs, or values of unknown origin, reach a call by a path that avoids another call."""
    calls = last.reached(lambda call: call is without)
    return without is last or any(
        call.kind == "inputs" or any(read is None for read, _ in call.reads) for call in calls
    )


def _unordered(exam: Examination, is_fitted: bool) -> Iterator[Finding]:
    """Report outputs that do not change if the positions of the inputs are permuted, while the targets may."""
    x = exam.inputs
    if not isinstance(x, Tensor) or x.is_sparse or x.dim() not in (2, 3) or x.shape[1] < SEVERAL or not len(x) > 1:
        return
    is_sequence = any(event.kind == "attention" or event.name in _OF_SEQUENCES for event in exam.passed.events)
    if not is_sequence or (x.dim() == 2 and x.is_floating_point()):
        return
    before, after = exam.evaluated, exam.evaluate(x.flip(1))
    if before.dim() != 2 or before.shape != after.shape:
        return
    apart, change = float((before - before.mean(0)).abs().max()), float((before - after).abs().max())
    if not (isfinite(apart) and change <= EQUAL * apart and apart > 0):
        return
    pairs = _same_but_for_order(x, exam.targets)
    evidence = {"positions": x.shape[1], "change": change, "differences": apart, "pairs": pairs}
    # Sets and bags of words have no order; targets that depend on it, or a batch that cannot be fitted, tell.
    attends = any(event.kind == "attention" or event.name in _OF_ATTENTION for event in exam.passed.events)
    is_slow = bool(exam.trials) and not is_fitted and exam.trials[0].progress < HALF
    may_miss = is_slow and attends and not x.is_floating_point()
    is_wrong = pairs > 0 or exam.knows("not_fitted") or (may_miss and _is_helped_by_positions(exam))
    yield replace(finding("unordered", 0.8 if pairs else 0.55, (), evidence), advice=not is_wrong)


def _is_helped_by_positions(exam: Examination) -> bool:
    """Whether trial steps get much lower if each position has a vector of its own, added to its embedding."""
    if exam.optimizer is None:
        return True
    before = tried(exam, exam.optimizer, MANY)[1]
    layers = [module for module in exam.model.modules() if isinstance(module, nn.Embedding)]
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(layer.register_forward_hook(_add_positions))
        after = tried(exam, exam.optimizer, MANY)[1]
    return after.end < HALF * before.end


def _add_positions(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
    if output.dim() != 3:
        return output
    places = torch.randn(output.shape[1:], generator=torch.Generator().manual_seed(0)).to(output)
    return output + output.detach().std() * places


def _same_but_for_order(x: Tensor, targets: object) -> int:
    """Count the pairs of neighbours in sorted order that have the same elements and different class labels."""
    if x.is_floating_point() or not isinstance(targets, Tensor) or targets.dim() != 1 or len(targets) != len(x):
        return 0
    if targets.is_floating_point() or x.dim() != 2:
        return 0
    sets: dict[tuple[int, ...], set[int]] = {}
    for row, label in zip(x.sort(1).values.tolist(), targets.tolist(), strict=True):
        sets.setdefault(tuple(row), set()).add(label)
    return sum(len(labels) - 1 for labels in sets.values())
