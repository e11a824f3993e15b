"""A check of the direction of the optimization: a loss that is maximized, or has the wrong sign."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite

import torch
from torch import Tensor

from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import NotAsked, Steps, check, finding
from normless.diagnosis.flow import LOSS
from normless.diagnosis.tape import KINDS

# Distances along the gradient of the outputs, in units of the outputs' size. A loss without a bound grows at least in
# proportion to the last two of them; this share of the growth is required.
DISTANCES = (1e2, 1e3, 1e4)
SHARE = 0.5


@check("direction of the steps")
def check_direction(exam: Examination) -> Steps:
    """Look for steps in the direction in which the loss has no bound, while it has one in the other direction.

    A Gaussian likelihood, a policy gradient and a Wasserstein critic have no bound in either direction.
    """
    groups = exam.optimizer.param_groups if exam.optimizer else [{}]
    maximized = {bool(group.get("maximize", False)) for group in groups}
    if len(maximized) > 1:
        raise NotAsked("some groups of the optimizer are maximized and others minimized")
    if not isfinite(exam.passed.loss):
        raise NotAsked("the loss is not finite")
    if any(call.path == LOSS and KINDS.get(call.name) == "weight" for call in exam.passed.flow.calls):
        raise NotAsked("the loss contains layers")
    reads = [source for call in exam.passed.flow.calls if call.path == LOSS for source, _ in call.reads]
    if not any(source is None or source.kind in ("targets", "inputs") for source in reads):
        raise NotAsked("the loss does not read the batch")
    (is_maximized,) = maximized
    bounds = _bounds(exam)
    if bounds is None:
        raise NotAsked("the loss was not computed for other outputs")
    rises, falls = bounds
    words = f"{'un' * rises}bounded above and {'un' * falls}bounded below"
    if is_maximized and rises and not falls:
        yield finding("ascent", 0.985, (), {"loss": exam.passed.loss})
    elif not is_maximized and falls and not rises:
        yield finding("wrong_sign", 0.985, (), {"loss": exam.passed.loss})
    return f"the loss is {words} along its gradient, and it is {'maximized' if is_maximized else 'minimized'}"


def _bounds(exam: Examination) -> tuple[bool, bool] | None:
    """Return whether the loss rises and falls without a bound along the gradient of the outputs; None if unknown."""
    outputs = exam.passed.logits.detach()
    if not outputs.is_floating_point() or not bool(outputs.isfinite().all()):
        return None
    with suppress(RuntimeError, ValueError, TypeError, IndexError):
        leaf = outputs.clone().requires_grad_()
        with torch.enable_grad():
            value = exam.loss_at(leaf)
        (gradient,) = torch.autograd.grad(value, leaf)
        largest = float(gradient.abs().max())
        if not isfinite(largest) or largest == 0.0:
            return None
        step = gradient / largest * max(float(outputs.abs().max()), 1.0)
        return _is_unbounded(exam, outputs, step, 1), _is_unbounded(exam, outputs, step, -1)
    return None


def _is_unbounded(exam: Examination, outputs: Tensor, step: Tensor, sign: int) -> bool:
    """Whether the loss goes on changing in the direction `sign` in proportion to the distance, or faster."""
    with torch.no_grad():
        values = [sign * float(exam.loss_at(outputs + sign * distance * step)) for distance in (0.0, *DISTANCES)]
    growth = [value - values[0] for value in values[1:]]
    return all(
        later > SHARE * before * far / near > 0
        for before, later, near, far in zip(growth, growth[1:], DISTANCES, DISTANCES[1:], strict=False)
    )
