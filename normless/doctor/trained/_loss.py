"""Where the loss of a trained network stands: against the best constant outputs, and against guessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from normless.doctor.facts._batches import size_of
from normless.doctor.facts._guessing import is_unbounded, lowest_of_constants, lowest_of_outputs, within_range
from normless.doctor.facts._tracer import REFUSED
from normless.errors import InputsError
from normless.probes import Loss
from normless.probes.hooks._losses import LossValueError, loss_of, own_loss
from normless.probes.hooks._watcher import logits_of

# Constant outputs are fitted to data with so many targets for each of their values, or so many real ones: fewer are
# fitted by any outputs.
_TARGETS, _REAL = 10, 100
# Outputs of more values are not fitted.
_MOST = 5_000_000


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a batch, for the outputs of the network and for others in their place."""

    loss: Loss
    output: Any
    inputs: Any
    targets: Any

    @property
    def logits(self) -> Tensor | None:
        """The outputs that the loss reads."""
        return logits_of(self.output)

    def value(self) -> float:
        """The loss; NaN without one."""
        try:
            return float(self.at(self.logits))
        except LossValueError:
            raise
        except (InputsError, ValueError):
            return nan

    def at(self, logits: Tensor | None) -> Tensor:
        """Return the loss with other logits in the output; a network may compute it without targets."""
        own = self.logits
        output = (
            self.output if logits is own else tree_map(lambda value: logits if value is own else value, self.output)
        )
        return loss_of(own_loss if self.targets is None else self.loss, output, self.inputs, self.targets)


def mean_loss(batches: Sequence[BatchLoss]) -> float:
    """Return the mean loss of examples."""
    sizes = [max(size_of(batch.inputs), 1) for batch in batches]
    return sum(size * batch.value() for size, batch in zip(sizes, batches, strict=True)) / sum(sizes)


class Standing(NamedTuple):
    """Mean losses over batches: of the network, the best constant outputs, and outputs of zero; NaN if unknown."""

    loss: float
    constant: float = nan
    guessing: float = nan


def standing(batches: Sequence[BatchLoss]) -> Standing:
    """Return where the loss stands.

    Outputs of zero guess: all classes alike, or the mean of standardized targets. The best constant outputs, found by
    descent, have the entropy of the labels or the variance of the targets; positions that the loss ignores do not
    count. They are known where each of their values is fitted to ten targets or more, a hundred if they are real
    numbers, the loss reads the outputs and does not fall without a bound, and other outputs are better than constant
    ones.
    """
    sizes = [max(size_of(batch.inputs), 1) for batch in batches]
    share, loss = [size / sum(sizes) for size in sizes], mean_loss(batches)
    logits = [batch.logits for batch in batches]
    known = [output for output in logits if output is not None and output.dim() and len(output)]
    if not isfinite(loss) or len(known) < len(logits) or len({output.shape[1:] for output in known}) > 1:
        return Standing(loss)
    outputs, within = torch.cat(known), within_range(known[0])

    def loss_at(free: Tensor) -> Tensor:
        parts = torch.split(within(free), [len(output) for output in known])
        pairs = zip(share, batches, parts, strict=True)
        return torch.stack([part * batch.at(values) for part, batch, values in pairs]).sum()

    return Standing(loss, *_bars(loss_at, outputs, [batch.targets for batch in batches], loss))


def _falls_without_bound(loss_at: Callable[[Tensor], Tensor], outputs: Tensor) -> bool:
    """Whether a loss, such as that of a policy, falls without a bound from outputs of zero: then it has no bar."""
    free = torch.zeros_like(outputs, dtype=torch.float32).requires_grad_()
    with suppress(*REFUSED):
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(loss_at(free), free)
        return is_unbounded(loss_at, -slope / slope.abs().max().clamp_min(1e-30))
    return False


def _bars(
    loss_at: Callable[[Tensor], Tensor], outputs: Tensor, targets: list[Any], loss: float
) -> tuple[float, float]:
    """Return the loss of the best constant outputs, and of outputs of zero."""
    constant = nan
    if _falls_without_bound(loss_at, outputs):
        return nan, nan
    try:
        guessing = float(loss_at(torch.zeros_like(outputs)))
        reads = guessing != loss or float(loss_at(outputs + 1 - 2 * outputs.sign())) != loss
    except REFUSED:
        return nan, nan
    if not reads:
        return nan, nan
    tensors = [target for target in targets if isinstance(target, Tensor)]
    # Labels below 0 are those of positions that losses ignore; of real targets each is compared with one output.
    real = sum(len(target) for target in tensors if target.is_floating_point())
    count = real + sum(int((target >= 0).sum()) for target in tensors if not target.is_floating_point())
    values = min(outputs.shape[1], outputs.shape[-1]) if outputs.dim() > 1 else 1
    # So few real targets do not tell a weak network from none.
    if outputs.dim() < 3 and 0 < real < _REAL * values:
        return nan, nan
    if outputs.numel() > _MOST:
        return nan, guessing
    if count >= _TARGETS * values:
        whole = torch.cat(tensors) if len({target.shape[1:] for target in tensors}) == 1 else None
        constant = lowest_of_constants(loss_at, outputs, whole)
    bar = min(filter(isfinite, (constant, guessing)), default=inf)
    if loss >= bar and lowest_of_outputs(loss_at, outputs) >= bar - abs(bar) / 100:
        return nan, nan
    return constant, guessing
