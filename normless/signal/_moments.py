"""Mean and variance of activations, of functions of activations, and in the layouts of layers' inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from normless.nn._channels import channel_axis
from normless.signal._quadrature import (
    RealFunction,
    normal_maximum,
    normal_moments,
    rectified,
    rectified_maximum,
    rectified_sum,
    underlying,
)


@dataclass(frozen=True)
class Moments:
    """The moments of activations in float64, each of shape (1, C, …), or (1, C) if averaged over positions.

    Attributes:
        mean: the mean over examples for the given weights. All examples share it, so its square is the covariance
            between two of them.
        variance: the variance over examples.
        noise: the variance of a batch's mean about `mean`.
        positive: the moments of a summand that is a ReLU's output, if the rest is normal; None if all is normal.
        split: whether mean and variance are known separately; else the mean is zero and only `second` is known.
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor
    positive: Moments | None = None
    split: bool = True

    @classmethod
    def of(
        cls, mean: Tensor, variance: Tensor, examples: int = 0, *, split: bool = True, rectified: bool = False
    ) -> Moments:
        """Make moments; `examples` is the size of a batch, 0 for none, `rectified` says that a ReLU computes them."""
        noise = variance / examples if examples else torch.zeros_like(mean)
        moments = cls(mean, variance, noise, split=split)
        return replace(moments, positive=moments) if rectified else moments

    @classmethod
    def standard(cls, second: float = 1.0) -> Moments:
        """Make the moments of one channel with mean zero and this second moment."""
        return cls.of(*torch.tensor([[[0.0]], [[second]]], dtype=torch.float64))

    @property
    def second(self) -> Tensor:
        """The second moments, E[x²] over examples."""
        return self.variance + self.mean.square()

    @property
    def power(self) -> float:
        """The second moment, averaged."""
        return float(self.second.detach().mean())

    @property
    def is_rectified(self) -> bool:
        """Whether the activations are a ReLU's output."""
        part = self.positive
        return part is not None and torch.equal(part.mean, self.mean) and torch.equal(part.variance, self.variance)

    def reshaped(self, change: Callable[[Tensor], Tensor]) -> Moments:
        """Apply a change of layout to each moment."""
        positive = None if self.positive is None else self.positive.reshaped(change)
        return Moments(change(self.mean), change(self.variance), change(self.noise), positive, self.split)

    def times(self, factor: Tensor | float) -> Moments:
        """Return the moments of the activations times a constant, or times several that broadcast."""
        stays = self.positive is not None and bool(torch.as_tensor(factor).ge(0).all())
        positive = self.positive.times(factor) if self.positive is not None and stays else None
        return Moments(self.mean * factor, self.variance * factor**2, self.noise * factor**2, positive, self.split)

    def shifted(self, constant: Tensor | float) -> Moments:
        """Return the moments of the activations plus a constant, or plus several that broadcast."""
        return replace(self, mean=self.mean + constant)

    def plus(self, other: Moments) -> Moments:
        """Return the moments of the sum of two uncorrelated activations."""
        parts = [moments.positive for moments in (self, other) if moments.positive is not None]
        positive = parts[0] if len(parts) == 1 else None
        mean, variance, noise = self.mean + other.mean, self.variance + other.variance, self.noise + other.noise
        return Moments(mean, variance, noise, positive, self.split and other.split)

    def product(self, other: Moments, examples: int = 1) -> Moments:
        """Return the moments of a product of independent factors: E[xy] = E[x] E[y], E[x²y²] = E[x²] E[y²]."""
        mean = self.mean * other.mean
        variance = (self.second * other.second - mean.square()).clamp_min(0)
        return Moments.of(mean, variance, examples, split=self.split and other.split)

    def averaged(self, count: float) -> Moments:
        """Return the moments of the mean of `count` independent elements: the same mean, 1/count of the variance."""
        return Moments(self.mean, self.variance / count, self.noise / count, split=self.split)

    def pooled(self) -> Moments:
        """Return the moments over all channels together, shape (1, 1): their mean and the variance about it."""
        mean = self.mean.mean(1, keepdim=True)
        variance = self.variance.mean(1, keepdim=True) + self.mean.var(1, correction=0, keepdim=True)
        return Moments.of(mean, variance, rectified=self.is_rectified)

    def with_channels(self, count: int) -> Moments:
        """Return the moments of `count` channels, shape (1, C), pooled if the number of channels differs."""
        return self if self.mean.shape[1] == count else self.pooled().reshaped(lambda x: x.expand(1, count))

    def padded(self, share: float) -> Moments:
        """Add channels of zeros, shape (1, C), so that the present channels are this share of all."""
        if count := max(round(self.mean.shape[1] * (1 / share - 1)), 0):
            return self.reshaped(lambda x: F.pad(x, (0, count)))
        mean, second = self.mean * share, self.second * share
        return Moments.of(mean, second - mean.square(), rectified=self.is_rectified)


def activated(function: nn.Module | RealFunction, moments: Moments, examples: int = 1) -> Moments:
    """Return E[φ(x)] and Var[φ(x)] for an elementwise function φ of normal activations x ~ N(mean, variance).

    The result is exact for ReLU, and precise to 1e-12 by `normal_moments` otherwise; for the ReLU of a sum with a
    ReLU's output, see `rectified_sum`. The mean over a batch of `examples` has the variance Var[φ(x)] / examples
    (De & Smith, appendix C).
    """
    if not (isinstance(function, nn.ReLU) or function is F.relu):
        return Moments.of(*normal_moments(function, moments.mean, moments.variance), examples, split=moments.split)
    if moments.is_rectified:
        return moments
    if moments.positive is None:
        mean, second = rectified(moments.mean, moments.variance)
    else:
        part = moments.positive
        rest = (moments.variance - part.variance).clamp_min(0)
        mean, second = rectified_sum(part.mean, part.second, moments.mean - part.mean, rest)
    variance = (second - mean.square()).clamp_min(0)
    return Moments.of(mean, variance, examples, split=moments.split, rectified=True)


def maximum(moments: Moments, count: Tensor | float, examples: int = 1) -> Moments:
    """Return the moments of the maximum of n = `count` independent elements with equal moments, as in max pooling.

    Elements of a window are assumed to be independent: outputs of a convolution are uncorrelated on average over its
    weights if its inputs are.
    """
    counts = torch.as_tensor(count, dtype=moments.mean.dtype, device=moments.mean.device)
    if moments.is_rectified:
        standard, deviation = underlying(moments.mean, moments.second)
        first, second = rectified_maximum(standard, counts)
        mean, variance = deviation * first, (deviation.square() * (second - first.square())).clamp_min(0)
    else:
        first, spread = normal_maximum(counts)
        mean, variance = moments.mean + first * moments.variance.sqrt(), spread * moments.variance
    return Moments.of(mean, variance, examples, split=moments.split, rectified=moments.is_rectified)


def normalized(module: nn.Module, moments: Moments | None, shape: torch.Size, training: bool) -> Moments | None:
    """Return the moments after a norm of torch, γ·(x - μ)/√(σ² + ε) + β with μ and σ² of its input; None if unknown.

    If the moments of the input, of shape (B, …), are unknown, σ² ≫ ε is assumed. The output of a batch norm then has
    mean β and variance γ²; the second moment after a layer or group norm is known if γ is equal for all channels and
    β is zero. Without `training`, a batch norm that was never trained uses its running statistics; other norms use
    the statistics of these inputs.
    """
    gamma, beta = _affine(module, shape)
    use_mean, use_variance = (getattr(module, name, True) for name in ("use_mean", "use_variance"))
    is_batch, tracked = isinstance(module, _NormBase), getattr(module, "num_batches_tracked", None)
    # No batch has updated the running statistics yet.
    untrained = is_batch and not training and tracked is not None and int(tracked) == 0
    if moments is None:
        if isinstance(module, nn.RMSNorm) or untrained or not (use_mean and use_variance):
            return None
        # After other norms only the average over channels is 1; the mean of each channel is unknown.
        if not is_batch and (float(gamma.max() - gamma.min()) > 0 or bool(beta.any())):
            return None
        flat = torch.zeros(1, *shape[1:], dtype=torch.float64, device=gamma.device)
        moments = Moments.of(flat, flat + 2.0**40, split=False)
    centre, scale = _statistics(module, moments, shape, untrained)
    factor = gamma * scale if use_variance else gamma
    mean = (moments.mean - centre if use_mean else moments.mean) * factor + beta
    # A batch norm subtracts the batch's own mean.
    noise = torch.zeros_like(mean) if is_batch and not untrained else moments.noise * factor.square()
    return Moments(mean, moments.variance * factor.square(), noise, split=moments.split or is_batch)


def _affine(module: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return γ and β, shaped to broadcast over the input."""
    axis = channel_axis(module, torch.empty(shape, device="meta"))
    sizes = [-1 if at == axis else 1 for at in range(len(shape))]
    like = next(iter((*module.parameters(), *module.buffers())), torch.empty(0))
    gamma, beta = (
        like.new_full((1,), absent, dtype=torch.float64) if value is None else value.detach().double()
        for value, absent in ((getattr(module, "weight", None), 1.0), (getattr(module, "bias", None), 0.0))
    )
    return gamma if gamma.dim() > 1 else gamma.reshape(sizes), beta if beta.dim() > 1 else beta.reshape(sizes)


def _statistics(module: nn.Module, moments: Moments, shape: torch.Size, untrained: bool) -> tuple[Tensor, Tensor]:
    """Return μ and 1/√(σ² + ε) from running statistics, or over the axes besides examples that the norm averages."""
    epsilon = getattr(module, "eps", None)
    small = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    if untrained:
        sizes = (1, -1, *[1] * (len(shape) - 2))
        centre, square = (module.get_buffer(f"running_{name}").double().reshape(sizes) for name in ("mean", "var"))
        return centre, (square + small).rsqrt()

    def average(values: Tensor) -> Tensor:
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            count, channel = len(module.normalized_shape), channel_axis(module, values)
            return values.mean((channel,) if count == 1 else tuple(range(-count, 0)), keepdim=True)
        groups = values.reshape(1, module.num_groups if isinstance(module, nn.GroupNorm) else shape[1], -1)
        return groups.mean(2, keepdim=True).expand_as(groups).reshape(values.shape)

    centre = torch.zeros_like(moments.mean) if isinstance(module, nn.RMSNorm) else average(moments.mean)
    return centre, (average(moments.second) - centre.square() + small).rsqrt()


def fitted(moments: Moments, shape: torch.Size) -> Moments | None:
    """Change moments, shape (1, …), to the layout of a batch (B, …) of the same values; return None if none fits.

    Channels move after or before positions, positions or all axes are flattened, axes of length 1 are added.
    """
    have, wanted = moments.mean, tuple(shape[1:])
    changes: list[Callable[[Tensor], Tensor]] = [lambda x: x]
    if have.dim() > 2:
        changes += [lambda x: x.movedim(1, -1), lambda x: x.movedim(-1, 1), lambda x: x.flatten(2).transpose(1, 2)]
    if len(wanted) == 1 or [side for side in wanted if side > 1] == [side for side in have.shape[1:] if side > 1]:
        changes.append(lambda x: x.reshape(1, *wanted) if prod(x.shape) == prod(wanted) else x)
    fitting = (change for change in changes if tuple(change(have).shape[1:]) == wanted)
    change = next(fitting, None)
    return None if change is None else moments.reshaped(change)


def placed(x: Moments, shape: tuple[int, ...] | None) -> Moments | None:
    """Change moments to the layout of a traced shape, which may have more or fewer positions; None if none fits."""
    if shape is None:
        return x
    have = x.mean.shape
    has_channels = len(have) == len(shape) and (have[1] == shape[1] or have[-1] == shape[-1])
    return fitted(x, torch.Size(shape)) or (x if has_channels else None)


def broadcast(factor: Moments, shape: torch.Size) -> Moments | None:
    """Change a factor, possibly per channel, to a layout that broadcasts over (1, C, …)."""
    wide = per_axis(factor.mean, shape)
    return None if wide is None else factor.reshaped(lambda x: x.reshape(wide.shape))


def per_axis(values: Tensor, shape: torch.Size, *, last: bool = False) -> Tensor | None:
    """Reshape values to broadcast over (B, C, …) or (B, …, C); return None if they match no axis.

    `values` are of a shape that broadcasts, a single one, or one per channel; `last` says which axis is tried first.
    """
    sides = zip(reversed(values.shape), reversed(shape), strict=False)
    if (values.dim() == len(shape) or (last and values.dim() > 1)) and all(size in (1, side) for size, side in sides):
        return values
    axes = (len(shape) - 1, 1) if last else (1, len(shape) - 1)
    axis = next((axis for axis in axes if values.numel() in (1, shape[axis])), None)
    sizes = [values.numel() if index == axis else 1 for index in range(len(shape))]
    return None if axis is None else values.reshape(sizes)
