"""The lowest losses of outputs that do not depend on the inputs, found by descent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf, isfinite, nan
from typing import Any

import torch
from torch import Tensor

# Free outputs are optimized up to this number of values.
MANY_OUTPUTS = 10**7
# A loss has no bound if it falls in proportion to the outputs, when these are multiplied by these factors.
FACTORS, SHARE = (1.0, 1e2, 1e4), 0.5


def lowest_of_constants(loss_at: Callable[[Tensor], Tensor], outputs: Tensor, targets: Any = None) -> float:
    """Return the lowest loss of outputs that are the same for all examples, found by descent; NaN if none is found.

    Outputs with several positions are the same for all positions too: one value per channel, on axis 1 or on the last
    axis. A loss that falls without a bound, such as that of a policy, has no lowest value.
    """
    if outputs.dim() < 1 or len(outputs) < 2 or not bool(outputs.isfinite().all()):
        return nan
    kept = {1, outputs.dim() - 1} if outputs.dim() > 2 else {1}
    found: list[float] = []
    for axis in kept:
        others = [dim for dim in range(outputs.dim()) if dim != axis]
        mean = outputs.detach().float().mean(others, keepdim=True)
        starts = [torch.zeros_like(mean), mean]
        if isinstance(targets, Tensor) and targets.is_floating_point() and targets.shape == outputs.shape:
            starts.append(targets.float().mean(others, keepdim=True))
        # Zero suits logits of any size, means suit probabilities.
        for start in starts:
            with suppress(RuntimeError, ValueError, IndexError):
                best = _descend_to_constant(loss_at, outputs, start, found)
                if _is_unbounded(lambda scaled: loss_at(scaled.expand_as(outputs).to(outputs.dtype)), best):
                    return nan
    return min(filter(isfinite, found), default=nan)


def _is_unbounded(loss_at: Callable[[Tensor], Tensor], outputs: Tensor) -> bool:
    """Whether a loss becomes lower without a bound if outputs are multiplied by larger and larger factors."""
    with torch.no_grad():
        near, far, farther = (float(loss_at(factor * outputs)) for factor in FACTORS)
    return farther < 0 and near - far > 0 and far - farther > SHARE * FACTORS[1] * (near - far)


def lowest_of_outputs(loss_at: Callable[[Tensor], Tensor], outputs: Tensor) -> float:
    """Return the lowest loss of outputs of this shape, found by descent from these and from zero.

    Returns minus infinity if no descent was made.
    """
    found: list[float] = []
    # The descent needs several copies of the outputs.
    for start in (outputs.detach(), torch.zeros_like(outputs)) if outputs.numel() < MANY_OUTPUTS else ():
        with suppress(RuntimeError, ValueError, IndexError):
            _descend_to_constant(loss_at, outputs, start.float(), found)
    return min(filter(isfinite, found), default=-inf)


def _descend_to_constant(
    loss_at: Callable[[Tensor], Tensor], outputs: Tensor, start: Tensor, found: list[float]
) -> Tensor:
    """Return the best constant near another; append the losses of constants on the way, as outputs, to `found`."""
    constant = start.clone().requires_grad_()
    descend(lambda: loss_at(constant.expand(outputs.shape).to(outputs.dtype)), [constant], found)
    return constant.detach()


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
