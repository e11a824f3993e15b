"""A trial on a few examples of the batch, which shows at a small cost that a network can be fitted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any

from torch.optim import Optimizer

from normless.doctor.experiments.rates import NEAR
from normless.doctor.experiments.steps import tried
from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import tensors, with_rows
from normless.probes import logits_of

# The share of the batch, and the least numbers of examples and targets.
SHARE, EXAMPLES, TARGETS = 8, 2, 8


def fits_few(exam: Examination, given: Optimizer, steps: int) -> bool:
    """Whether `steps` steps on a few examples take their loss below that of the best constant outputs."""
    part = few_of(exam)
    if part is None or not isfinite(part.guessing):
        return False
    goal = part.guessing - NEAR * abs(part.guessing)
    with suppress(RuntimeError, ValueError, TypeError, IndexError):
        _, trial = tried(part, given, steps, goal=goal)
        return any(loss < goal for loss in trial.losses)
    return False


def few_of(exam: Examination) -> Examination | None:
    """Return an examination of the first examples of a batch; None if it is small, or axis 0 does not hold them."""
    given, targets, logits = tensors(exam.inputs), tensors(exam.targets), exam.passed.logits
    count = len(logits) if logits.dim() else 0
    if not exam.is_divisible(count) or not all(tensor.dim() and len(tensor) == count for tensor in targets):
        return None
    labels = (targets or given)[0].numel()
    number = max(EXAMPLES, count // SHARE, -(-TARGETS * count // max(labels, 1)))
    if 2 * number > count:
        return None

    def first(values: Any) -> Any:
        return with_rows(values, count, list(range(number)))

    output = first(exam.passed.output)
    few = logits_of(output)
    if few is None or len(few) != number:
        return None
    part = replace(exam, inputs=first(exam.inputs), targets=first(exam.targets), trials=[], found=[], control=None)
    # The outputs of the recorded pass are those of its examples.
    part.__dict__["passed"] = replace(exam.passed, output=output, logits=few)
    return part
