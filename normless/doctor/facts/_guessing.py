"""The lowest losses of outputs: that do not depend on the inputs, of any outputs, and of outputs in an interval."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf, isfinite, isnan, nan
from typing import Any

import torch
from torch import Tensor

from normless.doctor.facts._tracer import REFUSED

# Free outputs are optimized up to this number of values.
MANY_OUTPUTS = 10**7
# A loss has no bound if it falls in proportion to the outputs, when these are multiplied by these factors.
FACTORS, SHARE = (1.0, 1e2, 1e4), 0.5
# The number of halvings of the step by which the lowest loss is found, and the size that stands for infinity.
_HALVINGS, _FAR = 16, 50.0
LossAt = Callable[[Tensor], Tensor]


def within_range(outputs: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what makes outputs of any values: the softmax or its logarithm if these are (log-)probabilities."""
    outputs = outputs.detach().float()
    for axis in (-1, 1) if outputs.dim() > 1 else ():
        if outputs.shape[axis] < 2:
            continue
        if bool((outputs.logsumexp(axis).abs() < 1e-3).all()):
            return lambda free: free.log_softmax(axis)
        if float(outputs.min()) >= 0 and bool(((outputs.sum(axis) - 1).abs() < 1e-3).all()):
            return lambda free: free.softmax(axis)
    return lambda free: free


def lowest_of_constants(loss_at: LossAt, outputs: Tensor, targets: Any = None) -> float:
    """Return the lowest loss of outputs that are the same for all examples, found by descent; NaN if none is found.

    Outputs with several positions are the same for all positions too: one value per channel, on axis 1 or on the last
    axis. A loss that falls without a bound, such as that of a policy, has no lowest value.
    """
    if outputs.dim() < 1 or len(outputs) < 2 or not bool(outputs.isfinite().all()):
        return nan
    found: list[float] = []
    for axis in {1, outputs.dim() - 1} if outputs.dim() > 2 else {1}:
        others = [dim for dim in range(outputs.dim()) if dim != axis]
        mean = outputs.detach().float().mean(others, keepdim=True)
        starts = [torch.zeros_like(mean), mean]
        if isinstance(targets, Tensor) and targets.is_floating_point() and targets.shape == outputs.shape:
            starts.append(targets.float().mean(others, keepdim=True))
        # Zero suits logits of any size, means suit probabilities.
        for start in starts:
            with suppress(*REFUSED):
                best = _descend_from(loss_at, outputs, start, found)
                if is_unbounded(lambda scaled: loss_at(scaled.expand_as(outputs).to(outputs.dtype)), best):
                    return nan
    return min(filter(isfinite, found), default=nan)


def is_unbounded(loss_at: LossAt, outputs: Tensor) -> bool:
    """Whether a loss becomes lower without a bound if outputs are multiplied by larger and larger factors."""
    with torch.no_grad():
        near, far, farther = (float(loss_at(factor * outputs)) for factor in FACTORS)
    return farther < 0 and near - far > 0 and far - farther > SHARE * FACTORS[1] * (near - far)


def lowest_of_outputs(loss_at: LossAt, outputs: Tensor) -> float:
    """Return the lowest loss of outputs of this shape, found by descent from these and from zero.

    Returns minus infinity if no descent was made.
    """
    found: list[float] = []
    # The descent needs several copies of the outputs.
    for start in (outputs.detach(), torch.zeros_like(outputs)) if outputs.numel() < MANY_OUTPUTS else ():
        with suppress(*REFUSED):
            _descend_from(loss_at, outputs, start.float(), found)
    return min(filter(isfinite, found), default=-inf)


def _descend_from(loss_at: LossAt, outputs: Tensor, start: Tensor, found: list[float]) -> Tensor:
    """Return the best outputs near others, which are expanded; append the losses on the way to `found`."""
    free = start.clone().requires_grad_()
    descend(lambda: loss_at(free.expand(outputs.shape).to(outputs.dtype)), [free], found)
    return free.detach()


def descend(loss: Callable[[], Tensor], free: list[Tensor], found: list[float], steps: int = 15) -> None:
    """Lower a loss of free tensors, which are changed; append the losses on the way to `found`."""
    optimizer = torch.optim.LBFGS(free, max_iter=steps, max_eval=4 * steps // 3, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        found.append(float(value.detach()))
        return found[-1]

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def lowest_within(loss_at: LossAt, outputs: Tensor, low: float, high: float, far: float = _FAR) -> float:
    """Return the lowest loss of outputs in an interval, by steps against the sign of the gradient; NaN if unknown.

    The step is halved each time, so that a loss that is a sum over outputs and convex in each of them is minimized.
    """
    found: list[float] = []
    far = max(far, 2 * float(outputs.detach().abs().max()))
    low, high = max(low, -far), min(high, far)
    values = outputs.detach().clamp(low, high)
    with suppress(*REFUSED):
        for halving in range(_HALVINGS):
            values = values.detach().requires_grad_()
            with torch.enable_grad():
                loss = loss_at(values)
                (slope,) = torch.autograd.grad(loss, values)
            found.append(float(loss.detach()))
            values = (values - slope.sign() * (high - low) * 0.5**halving).clamp(low, high)
        found.append(float(loss_at(values.detach())))
        return min((value for value in found if not isnan(value)), default=nan)
    return nan
