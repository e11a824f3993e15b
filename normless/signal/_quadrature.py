"""Expectations of functions of normal variables: activations, rectified variables, maxima."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.special import ndtr, ndtri

from normless._internal.copying import copied
from normless.errors import MissingValuesError

Values = NDArray[np.float64]
RealFunction = Callable[[Tensor], Tensor]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
# In standard deviations; the probability beyond the first and last is 1e-19.
_PANELS = (-9.0, -3.0, 3.0, 9.0)
# Between these inputs the usual smooth activations bend; panels end there where inputs spread far beyond them.
_BENDS = (-24.0, -12.0, -6.0, -2.0, 2.0, 6.0, 12.0, 24.0)
_WIDE = 1.0
# Values of an activation that are computed at once.
_AT_ONCE = 2**18
# Kinks are searched for in intervals between ±_REACH, each halved until it is 2^-30 wide.
_REACH, _INTERVALS, _HALVINGS = 32.0, 512, 27
# A distribution that is not normal is stored as this many equally likely values.
_VALUES = 2**16
# For each of them a quantile of the standard normal distribution, by multiples of the golden ratio.
_NOISE: Values = ndtri((torch.arange(_VALUES, dtype=torch.float64) * (sqrt(5) - 1) / 2 + 0.5) % 1).numpy()
# A nonnegative part is spread over this many equally likely values, besides zero.
_LEVELS = 24
# The integral for the maximum of several variables, up to _END deviations.
_LONG_NODES, _LONG_WEIGHTS = np.polynomial.legendre.leggauss(96)
_END = 12.0


def in_double(activation: nn.Module | RealFunction, device: torch.device | str = "cpu") -> RealFunction:
    """Convert a copy of an elementwise activation in evaluation mode to a function of float64 tensors."""
    if not isinstance(activation, nn.Module):
        return activation
    if any(parameter.is_meta for parameter in activation.parameters()):
        raise MissingValuesError(f"The parameters of this {type(activation).__name__} have no values.")
    # `forward` runs no hooks: those are for real activations.
    function: RealFunction = copied(activation).to(device, torch.float64).eval().forward
    return lambda x: function(x.clone())


def applied(activation: nn.Module, values: Values) -> Values:
    """Apply an elementwise activation in float64, (n,) to (channels, n), with the slopes of each channel."""
    inputs = torch.from_numpy(values).expand(1, _channels(activation), -1)
    with torch.no_grad():
        outputs: Values = in_double(activation)(inputs)[0].numpy()
    return outputs


def kinks(function: RealFunction, channels: int = 1) -> list[float]:
    """Find the points between -32 and 32 at which an elementwise function or its slope jumps, by bisection.

    The slopes left and right of an interval of width h differ by the jump inside it and by O(h) without one.
    """
    edges = torch.linspace(-_REACH, _REACH, _INTERVALS + 1, dtype=torch.float64)
    left, right = edges[:-1], edges[1:]

    def at(x: Tensor) -> Tensor:
        return function(x.expand(1, channels, -1))[0]

    def jump(start: Tensor, end: Tensor) -> Tensor:
        width = end - start
        slopes = (at(end + width) - at(end)) / width - (at(start) - at(start - width)) / width
        return slopes.abs().amax(0)

    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        is_left = jump(left, middle) >= jump(middle, right)
        left, right = torch.where(is_left, left, middle), torch.where(is_left, middle, right)
    places = ((left + right) / 2)[jump(left, right) > 1e-4].tolist()
    # Kinks lie at round numbers as a rule, and bisection stops near them.
    return sorted({round(place, 6) if abs(place - round(place, 6)) < 1e-8 else place for place in places})


_kinks_of_functions = cache(kinks)


def normal_moments(activation: nn.Module | RealFunction, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[φ(x)] and Var[φ(x)] for x ~ N(mean, variance), elementwise, to about 1e-12.

    The integral over z = (x - mean) / deviation is split at fixed z and at the kinks of φ, and every panel has 20
    Gauss-Legendre nodes. Gauss-Hermite nodes, which do not know the kinks, have an error of 1e-3.

    Args:
        activation: an elementwise function φ; a module may have a slope per channel.
        mean, variance: float64, shape (1, C, …).

    Raises:
        MissingValuesError: the parameters of φ have no values.
    """
    function, channels = in_double(activation, mean.device), _channels(activation)
    if channels > 1 and mean.shape[1] == 1:
        mean, variance = (moment.expand(1, channels, *mean.shape[2:]) for moment in (mean, variance))
    deviation = variance.clamp_min(0).sqrt()
    find = kinks if isinstance(activation, nn.Module) else _kinks_of_functions
    places = {0.0, *find(function, channels)}
    if float(deviation.max()) > _WIDE:
        places.update(_BENDS)
    breaks = [torch.full_like(mean, z) for z in _PANELS]
    breaks += [((place - mean) / deviation.clamp_min(1e-150)).clamp(_PANELS[0], _PANELS[-1]) for place in places]
    edges = torch.stack(breaks).sort(dim=0).values
    # Moments about φ(mean): a variance far below the squared mean is not lost.
    centre = function(mean)
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    at_once = max(1, _AT_ONCE // mean.numel())
    nodes, weights = (
        torch.split(torch.from_numpy(values).to(mean), at_once) for values in (_NODES, _WEIGHTS / sqrt(2 * pi))
    )
    for start, end in pairwise(edges):
        half = (end - start) / 2
        if not bool(half.any()):
            continue
        for node, weight in zip(nodes, weights, strict=True):
            # Nodes take the axis of examples, (nodes, C, …).
            column = (-1, *[1] * (mean.dim() - 1))
            z = start + half * (1 + node.view(column))
            share = z.square().mul_(-0.5).exp_().mul_(half).mul_(weight.view(column))
            value = function(mean + deviation * z).sub_(centre)
            share *= value
            first += share.sum(0, keepdim=True)
            second += share.mul_(value).sum(0, keepdim=True)
    return centre + first, (second - first.square()).clamp_min(0)


def _channels(activation: nn.Module | RealFunction) -> int:
    """Return the number of channels with separate parameters, 1 if all channels share them."""
    parameters = activation.parameters() if isinstance(activation, nn.Module) else ()
    return max((parameter.numel() for parameter in parameters), default=1)


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[max(x, 0)] and E[max(x, 0)²] for x ~ N(mean, variance), elementwise."""
    deviation = variance.clamp_min(0).sqrt()
    standard = mean / deviation.clamp_min(1e-300)
    above = ndtr(standard)
    density = torch.exp(-standard.square() / 2) / sqrt(2 * pi)
    return mean * above + deviation * density, (mean.square() + variance) * above + mean * deviation * density


def rectified_sum(first: Tensor, second: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[max(p + x, 0)] and its second moment for x ~ N(mean, variance) and an independent p ≥ 0, elementwise.

    `first` and `second` are E[p] and E[p²] of a rectified normal variable p, as on the stream of ResNet-V1. The
    result is exact if x is zero.
    """
    standard, deviation = underlying(first, second)
    below = ndtr(-standard)
    totals = [part * below for part in rectified(mean, variance)]
    plain = [torch.zeros_like(first), torch.zeros_like(first)]
    weight = (1 - below) / _LEVELS
    for index in range(_LEVELS):
        level = below + weight * (index + 0.5)
        value = deviation * (standard + ndtri(level)).clamp_min(0)
        for power, part in enumerate(rectified(mean + value, variance)):
            totals[power] = totals[power] + weight * part
            plain[power] = plain[power] + weight * value ** (power + 1)
    # The error of the few values for p itself is known.
    return totals[0] + first - plain[0], totals[1] + second - plain[1]


def underlying(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return t and σ for which max(σ·(t + z), 0) with standard normal z has these moments."""
    grid = torch.linspace(-6, 30, 4001, dtype=torch.float64)
    mean, square = rectified(grid, torch.ones_like(grid))
    share = (first.square() / second.clamp_min(1e-300)).cpu().numpy()
    places = np.interp(share, (mean.square() / square).numpy(), grid.numpy())
    standard = torch.from_numpy(np.asarray(places)).to(first).reshape(first.shape)
    return standard, first / rectified(standard, torch.ones_like(standard))[0]


def normal_maximum(count: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of M, the maximum of n independent standard normal variables, elementwise in n."""
    first, second = rectified_maximum(torch.full_like(count, _END), count)
    return first - _END, second - first.square()


def rectified_maximum(standard: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[max(t + M, 0)] and E[max(t + M, 0)²] for M, the maximum of n standard normal variables, elementwise.

    These are ∫ (1 - Φ(z)ⁿ) dz and ∫ 2(t + z) (1 - Φ(z)ⁿ) dz from -t on, with t = `standard`; n = `count` need not be
    an integer. max(t + M, 0) is also the maximum of n rectified variables max(t + z, 0).
    """
    start = (-standard).clamp(-_END, _END)
    # Below the start, where 1 - Φⁿ is 1.
    first = (standard - _END).clamp_min(0)
    second = first.square()
    for low, high in ((start.clamp_max(0), 0.0), (start.clamp_min(0), _END)):
        half = (high - low) / 2
        for node, weight in zip(_LONG_NODES, _LONG_WEIGHTS, strict=True):
            z = low + half * (1 + node)
            above = weight * half * (1 - ndtr(z) ** count)
            first, second = first + above, second + 2 * (standard + z) * above
    return first, second


@torch.no_grad()
def activation_gain(activation: nn.Module) -> float:
    """Return γ = 1 / √Var[φ(z)] for z ~ N(0, 1), which gives an activation unit variance (Brock et al. 2021).

    It is √(2 / (1 - 1/π)) ≈ 1.7128 for ReLU, averaged over channels with different slopes, infinite for a constant φ.

    Raises:
        MissingValuesError: the parameters of φ have no values, as on the meta device.
    """
    standard = torch.zeros(1, _channels(activation), dtype=torch.float64)
    mean, variance = normal_moments(activation, standard, standard + 1)
    total = float(variance.mean() + mean.var(correction=0))
    return 1 / sqrt(total) if total > 0 else inf


def is_homogeneous(activation: nn.Module) -> bool:
    """Whether φ(s·x) = s·φ(x) for every s > 0, as for ReLU and LeakyReLU."""
    nodes = np.linspace(-12, 12, 481)
    outputs = applied(activation, nodes)
    return all(np.allclose(applied(activation, scale * nodes), scale * outputs, atol=0) for scale in (0.125, 8.0))


@dataclass(frozen=True)
class Stream:
    """The distribution of an element of the stream at initialization: one of equally likely `values`, plus noise.

    The stream of a pre-activation network is the sum of its branches and normal, with a variance that grows by α² in
    each block. If an activation follows the sum (ResNet-V1), the stream is not normal and `values` track its
    distribution. The noise is normal and independent, with mean zero and variance `normal_variance`.
    """

    values: Values
    normal_variance: float

    @classmethod
    def standard(cls) -> Stream:
        """Return the standard normal output of a standardized layer on inputs of unit variance."""
        return cls(np.zeros(_VALUES), 1.0)

    @property
    def variance(self) -> float:
        """The variance of an element."""
        return float(self.values.var()) + self.normal_variance

    def plus(self, variance: float) -> Stream:
        """Add a branch with a normal output of mean zero and this variance."""
        return Stream(self.values, self.normal_variance + variance)

    def through(self, activation: nn.Module) -> Stream:
        """Apply an elementwise activation."""
        return self._of(applied(activation, self._samples()).ravel())

    def padded(self, share: float) -> Stream:
        """Add channels of zeros, so that the present channels are this share of all (option A of ResNet-V1)."""
        return self._of(np.append(self._samples(), np.zeros(round(_VALUES * (1 / share - 1)))))

    def _samples(self) -> Values:
        """Return equally likely values with noise, which pair the quantiles of both by a Kronecker sequence."""
        return self.values + sqrt(self.normal_variance) * _NOISE

    @classmethod
    def _of(cls, samples: Values) -> Stream:
        places = (np.arange(_VALUES) + 0.5) * len(samples) / _VALUES
        return cls(np.sort(samples)[places.astype(int)], 0.0)
