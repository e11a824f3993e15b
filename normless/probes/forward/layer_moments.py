"""Mean and variance of activations behind norms, activations, dropout and factors, predicted."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from normless.probes.forward.rectified import rectified, rectified_sum
from normless.probes.hooks.channels import channel_axis

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)

# Functions of forward code that are elementwise and whose other arguments do not matter here, by operation.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "silu": F.silu,
    "selu": F.selu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softsign": F.softsign,
}


@dataclass(frozen=True)
class Moments:
    """What is known of activations before they are seen; float64, shape (1, …) each.

    Attributes:
        mean: over examples, for the weights at hand; it is what the examples have in common, so its square is the
            covariance between two of them.
        variance: over examples.
        noise: the variance of the mean over one batch about `mean`.
        positive: those of a part that is a ReLU's output, where the rest is normal; None where all is.
        split: whether mean and variance are known one by one; else the mean is zero and `second` alone is known.
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor
    positive: Moments | None = None
    split: bool = True

    @classmethod
    def of_batch(cls, x: Tensor) -> Moments:
        """Those of a batch itself, shape (B, …): its mean is known, so nothing is left to chance."""
        variance, mean = torch.var_mean(x.double(), dim=0, correction=0, keepdim=True)
        return cls(mean, variance, torch.zeros_like(mean))

    @property
    def second(self) -> Tensor:
        """The second moments, E[x²] over examples."""
        return self.variance + self.mean.square()

    def stacked(self) -> Tensor:
        """The three of them, shape (3, …)."""
        return torch.cat([self.mean, self.variance, self.noise])

    @classmethod
    def unstacked(cls, stacked: Tensor, *, split: bool) -> Moments:
        """The inverse of `stacked`."""
        mean, variance, noise = stacked.unsqueeze(1)
        return cls(mean, variance, noise, split=split)

    def reshaped(self, change: Callable[[Tensor], Tensor]) -> Moments:
        """With a change of layout applied to each of them."""
        positive = None if self.positive is None else self.positive.reshaped(change)
        return Moments(change(self.mean), change(self.variance), change(self.noise), positive, self.split)

    def times(self, factor: Tensor | float) -> Moments:
        """Behind a fixed factor, one or some that broadcast."""
        stays = self.positive is not None and bool(torch.as_tensor(factor).ge(0).all())
        positive = self.positive.times(factor) if self.positive is not None and stays else None
        return Moments(self.mean * factor, self.variance * factor**2, self.noise * factor**2, positive, self.split)

    def plus(self, other: Moments) -> Moments:
        """Of a sum of two that are uncorrelated; their means add."""
        parts = [one.positive for one in (self, other) if one.positive is not None]
        positive = parts[0] if len(parts) == 1 else None
        noise = self.noise + other.noise
        split = self.split and other.split
        return Moments(self.mean + other.mean, self.variance + other.variance, noise, positive, split)


def activated(function: Callable[[Tensor], Tensor], moments: Moments, examples: int) -> Moments:
    """Behind an elementwise function φ of normal activations: E[φ(x)] and Var[φ(x)], x ~ N(mean, variance).

    Exact for ReLU, by Gauss–Hermite quadrature otherwise; for the ReLU behind a sum whose skip path is behind one
    already, see `rectified_sum`. The mean over a batch of `examples` strays by Var[φ(x)] / examples, as if these
    were independent (De & Smith, appendix C).
    """
    is_relu = isinstance(function, nn.ReLU) or function is F.relu
    if not is_relu:
        mean, second = _by_quadrature(function, moments)
    elif moments.positive is None:
        mean, second = rectified(moments.mean, moments.variance)
    else:
        part = moments.positive
        rest = (moments.variance - part.variance).clamp_min(0)
        mean, second = rectified_sum(part.mean, part.second, moments.mean - part.mean, rest)
    variance = (second - mean.square()).clamp_min(0)
    found = Moments(mean, variance, variance / examples, split=moments.split)
    return replace(found, positive=found) if is_relu else found


def _by_quadrature(function: Callable[[Tensor], Tensor], moments: Moments) -> tuple[Tensor, Tensor]:
    """E[φ(x)] and E[φ(x)²], one node of the quadrature at a time."""
    deviation = moments.variance.sqrt()
    mean = second = torch.zeros_like(deviation)
    # A copy in float64, of the module itself: hooks are for real activations.
    apply = deepcopy(function).double().forward if isinstance(function, nn.Module) else function
    for node, weight in zip(_NODES, _WEIGHTS / _WEIGHTS.sum(), strict=True):
        value = apply(moments.mean + node * deviation)
        mean, second = mean + weight * value, second + weight * value.square()
    return mean, second


def dropped(module: nn.Module, moments: Moments, examples: int) -> Moments | None:
    """Behind an active dropout, of single activations, of channels or of whole examples; None where it is no such.

    What is kept with probability 1 - p is divided by it, so that E[x] stays and E[x²] becomes E[x²] / (1 - p).
    """
    rate: Any = module.p if isinstance(module, _DropoutNd) else getattr(module, "drop_prob", None)
    if not isinstance(rate, float) or not getattr(module, "scale_by_keep", True):
        return None
    variance = moments.second / (1 - rate) - moments.mean.square()
    return Moments(moments.mean, variance, variance / examples, split=moments.split)


def normalized(module: nn.Module, moments: Moments | None, shape: torch.Size, training: bool) -> Moments | None:
    """Behind a norm of torch's own kinds: γ·(x - μ)/√(σ² + ε) + β, with the μ and σ² that its input has.

    Where nothing is known of the input, σ² ≫ ε is taken for granted, and mean β and variance γ² behind a batch norm
    still are known; behind layer and group norms the second moment, where γ is the same for all channels and β zero.

    Args:
        module: a batch, instance, group, layer or RMS norm; the second moment alone counts for the last.
        moments: of its input, or None.
        shape: of its input, (B, …).
        training: whether a batch norm uses the batch's statistics. Else its running ones are used where it never
            was trained, and those it would have on these inputs otherwise.

    Returns:
        The moments of its output; None where they are not known.
    """
    gamma, beta = _affine(module, shape)
    if moments is None:
        if isinstance(module, nn.RMSNorm) or not getattr(module, "use_mean", True):
            return None
        if _is_untrained(module, training) or not getattr(module, "use_variance", True):
            return None
        flat = torch.zeros(1, *shape[1:], dtype=torch.float64, device=gamma.device)
        if isinstance(module, _NormBase):
            return Moments(flat + beta, flat + gamma.square(), flat)
        # What is one is the average over channels, and these have means that are not known.
        if float(gamma.max() - gamma.min()) > 0 or bool(beta.any()):
            return None
        return Moments(flat, flat + gamma.square() + beta.square(), flat, split=False)
    if _is_untrained(module, training):
        centre, scale = _running(module, len(shape))
    else:
        centre, scale = _statistics(module, moments, shape)
    factor = gamma * scale if getattr(module, "use_variance", True) else gamma
    shift = centre if getattr(module, "use_mean", True) else torch.zeros_like(centre)
    noise = moments.noise * factor.square()
    if isinstance(module, _NormBase) and not _is_untrained(module, training):
        # The mean of the batch is what was taken off.
        noise = torch.zeros_like(noise)
    split = moments.split or isinstance(module, _NormBase)
    return Moments((moments.mean - shift) * factor + beta, moments.variance * factor.square(), noise, split=split)


def _affine(module: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """γ and β, shaped to broadcast over the input."""
    sizes = [1] * len(shape)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1:
        sizes[-len(module.normalized_shape) :] = module.normalized_shape
    else:
        sizes[channel_axis(module, torch.empty(shape, device="meta"))] = -1
    parts = []
    for name, plain in (("weight", 1.0), ("bias", 0.0)):
        value = getattr(module, name, None)
        like = next(iter((*module.parameters(), *module.buffers())), torch.empty(0))
        absent = like.new_full((), plain, dtype=torch.float64)
        parts.append(value.detach().double().reshape(sizes) if isinstance(value, Tensor) else absent)
    return parts[0], parts[1]


def _is_untrained(module: nn.Module, training: bool) -> bool:
    """Whether a norm works with the running statistics that it was made with."""
    tracked = getattr(module, "num_batches_tracked", None)
    return isinstance(module, _NormBase) and not training and tracked is not None and int(tracked) == 0


def _running(module: nn.Module, axes: int) -> tuple[Tensor, Tensor]:
    assert isinstance(module, _NormBase)
    assert module.running_mean is not None
    assert module.running_var is not None
    sizes = (1, -1, *[1] * (axes - 2))
    scale = (module.running_var.double() + module.eps).rsqrt()
    return module.running_mean.double().reshape(sizes), scale.reshape(sizes)


def _statistics(module: nn.Module, moments: Moments, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """μ and 1/√(σ² + ε) over what the norm averages besides examples, shaped to broadcast."""
    mean, second = moments.mean, moments.second
    grouped = mean.shape
    if isinstance(module, nn.GroupNorm):
        grouped = torch.Size((1, module.num_groups, shape[1] // module.num_groups, *shape[2:]))
        axes = tuple(range(2, len(grouped)))
    elif isinstance(module, _NormBase):
        axes = tuple(range(2, len(shape)))
    else:
        count = len(module.normalized_shape)  # type: ignore[arg-type]
        channel = channel_axis(module, torch.empty(shape, device="meta"))
        axes = (channel,) if count == 1 else tuple(range(len(shape) - count, len(shape)))

    def average(values: Tensor) -> Tensor:
        if not axes:
            return values
        wide = values.reshape(grouped)
        return wide.mean(axes, keepdim=True).expand(grouped).reshape(values.shape)

    centre = torch.zeros_like(mean) if isinstance(module, nn.RMSNorm) else average(mean)
    epsilon = getattr(module, "eps", None)
    small = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    return centre, (average(second) - centre.square() + small).rsqrt()
