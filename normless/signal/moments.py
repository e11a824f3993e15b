"""Mean and variance of activations, and of functions of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from normless.signal.quadrature import Function, normal_moments
from normless.signal.rectified import greatest_normal, greatest_rectified, rectified, rectified_sum, underlying

# Elementwise functions of forward code, by operation.
_NAMES = "relu relu6 gelu silu selu mish tanh sigmoid hardswish hardsigmoid softsign"
FUNCTIONS: dict[str, Function] = {name: getattr(F, name) for name in _NAMES.split()}


@dataclass(frozen=True)
class Moments:
    """The moments of activations; float64, shape (1, C, …) each, or (1, C) where positions are averaged over.

    Attributes:
        mean: over examples, for the weights at hand; it is common to the examples, so its square is the covariance
            between two of them.
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
    def of(
        cls, mean: Tensor, variance: Tensor, examples: int = 0, *, split: bool = True, rectified: bool = False
    ) -> Moments:
        """These moments, over a batch of independent examples if their number is above 0; `rectified`: of a ReLU."""
        noise = variance / examples if examples else torch.zeros_like(mean)
        moments = cls(mean, variance, noise, split=split)
        return replace(moments, positive=moments) if rectified else moments

    @classmethod
    def standard(cls, second: float = 1.0) -> Moments:
        """One channel of mean zero and this second moment."""
        return cls.of(*torch.tensor([[[0.0]], [[second]]], dtype=torch.float64))

    @property
    def second(self) -> Tensor:
        """The second moments, E[x²] over examples."""
        return self.variance + self.mean.square()

    @property
    def power(self) -> float:
        """The second moment, averaged."""
        return float(self.second.mean())

    @property
    def is_rectified(self) -> bool:
        """Whether all of it is a ReLU's output."""
        part = self.positive
        return part is not None and torch.equal(part.mean, self.mean) and torch.equal(part.variance, self.variance)

    def stacked(self) -> Tensor:
        """Mean, variance and noise, shape (3, …)."""
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
        """Those of the activations times a constant, or several that broadcast."""
        stays = self.positive is not None and bool(torch.as_tensor(factor).ge(0).all())
        positive = self.positive.times(factor) if self.positive is not None and stays else None
        return Moments(self.mean * factor, self.variance * factor**2, self.noise * factor**2, positive, self.split)

    def plus(self, other: Moments) -> Moments:
        """Those of a sum of two that are uncorrelated; their means add."""
        parts = [one.positive for one in (self, other) if one.positive is not None]
        positive = parts[0] if len(parts) == 1 else None
        mean, variance, noise = self.mean + other.mean, self.variance + other.variance, self.noise + other.noise
        return Moments(mean, variance, noise, positive, self.split and other.split)

    def product(self, other: Moments, examples: int = 1) -> Moments:
        """Those of a product of two that are independent: E[xy] = E[x] E[y] and E[x²y²] = E[x²] E[y²]."""
        mean = self.mean * other.mean
        variance = (self.second * other.second - mean.square()).clamp_min(0)
        return Moments.of(mean, variance, examples, split=self.split and other.split)

    def averaged(self, count: float) -> Moments:
        """Those of the mean of so many independent elements: the same mean, 1/count of the variance."""
        return Moments(self.mean, self.variance / count, self.noise / count, split=self.split)

    def pooled(self) -> Moments:
        """Those of all channels together, shape (1, 1): their mean, and the variance about it."""
        mean = self.mean.mean(1, keepdim=True)
        variance = self.variance.mean(1, keepdim=True) + self.mean.var(1, correction=0, keepdim=True)
        return Moments.of(mean, variance, rectified=self.is_rectified)

    def with_channels(self, count: int) -> Moments:
        """Those of so many channels, shape (1, C); where their number differs, each gets those of all."""
        return self if self.mean.shape[1] == count else self.pooled().reshaped(lambda x: x.expand(1, count))

    def padded(self, share: float) -> Moments:
        """With channels of zeros, shape (1, C), such that the others are this share of all."""
        count = max(round(self.mean.shape[1] * (1 / share - 1)), 0)
        if count:
            return self.reshaped(lambda x: F.pad(x, (0, count)))
        mean, second = self.mean * share, self.second * share
        return Moments.of(mean, second - mean.square(), rectified=self.is_rectified)


def activated(function: nn.Module | Function, moments: Moments, examples: int = 1) -> Moments:
    """Moments of an elementwise function φ of normal activations: E[φ(x)] and Var[φ(x)], x ~ N(mean, variance).

    Exact for ReLU, to 1e-12 by `normal_moments` otherwise; for the ReLU of a sum with a ReLU's output, see
    `rectified_sum`. The mean over a batch of `examples` varies by Var[φ(x)] / examples (De & Smith, appendix C).
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


def greatest(moments: Moments, count: Tensor | float, examples: int = 1) -> Moments:
    """Moments of the greatest of n independent elements with the same moments, as under a max pooling.

    Of normal elements it is mean + deviation · M with the M of `greatest_normal`; of a ReLU's outputs it is that of
    `greatest_rectified`. Elements of a window are taken to be independent: those of a convolution are uncorrelated on
    average over its weights where its inputs are. n = `count` is a number, or one for each element.
    """
    counts = torch.as_tensor(count, dtype=moments.mean.dtype, device=moments.mean.device)
    if moments.is_rectified:
        standard, deviation = underlying(moments.mean, moments.second)
        first, second = greatest_rectified(standard, counts)
        mean = deviation * first
        variance = (deviation.square() * (second - first.square())).clamp_min(0)
    else:
        first, spread = greatest_normal(counts)
        mean = moments.mean + first * moments.variance.sqrt()
        variance = spread * moments.variance
    return Moments.of(mean, variance, examples, split=moments.split, rectified=moments.is_rectified)


def dropped(module: nn.Module, moments: Moments, examples: int) -> Moments | None:
    """Moments after an active dropout of activations, channels or whole examples; None for another module.

    An element that stays, with probability 1 - p, is divided by it: E[x] stays, E[x²] becomes E[x²] / (1 - p).
    """
    rate: Any = module.p if isinstance(module, _DropoutNd) else getattr(module, "drop_prob", None)
    if not isinstance(rate, float) or not getattr(module, "scale_by_keep", True):
        return None
    variance = moments.second / (1 - rate) - moments.mean.square()
    return Moments.of(moments.mean, variance, examples, split=moments.split)
