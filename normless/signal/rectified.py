"""Moments of rectified normal variables: alone, added to a normal one, and the greatest of several."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import torch
from torch import Tensor
from torch.special import ndtr

# A nonnegative part is spread over this many equally likely values, those at zero aside.
_VALUES = 24
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_END = 12.0


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(x, 0)] and E[max(x, 0)²] of x ~ N(mean, variance), elementwise."""
    deviation = variance.clamp_min(0).sqrt()
    standard = mean / deviation.clamp_min(1e-300)
    above = ndtr(standard)
    density = torch.exp(-standard.square() / 2) / sqrt(2 * pi)
    return mean * above + deviation * density, (mean.square() + variance) * above + mean * deviation * density


def rectified_sum(first: Tensor, second: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(p + x, 0)] and its second moment, of x ~ N(mean, variance) and an independent p ≥ 0, elementwise.

    `first` and `second` are E[p] and E[p²] of a rectified normal variable p, as on the stream of ResNet-V1. Exact
    where x is zero.
    """
    standard, deviation = underlying(first, second)
    below = ndtr(-standard)
    totals = [part * below for part in rectified(mean, variance)]
    plain = [torch.zeros_like(first), torch.zeros_like(first)]
    weight = (1 - below) / _VALUES
    for index in range(_VALUES):
        level = below + weight * (index + 0.5)
        value = deviation * (standard + torch.special.ndtri(level)).clamp_min(0)
        for power, part in enumerate(rectified(mean + value, variance)):
            totals[power] = totals[power] + weight * part
            plain[power] = plain[power] + weight * value ** (power + 1)
    # The error of the few values for p itself is known.
    return totals[0] + first - plain[0], totals[1] + second - plain[1]


def underlying(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """t and σ for which max(σ·(t + z), 0) with standard normal z has these moments."""
    grid = torch.linspace(-6, 30, 4001, dtype=torch.float64)
    mean, square = rectified(grid, torch.ones_like(grid))
    share = (first.square() / second.clamp_min(1e-300)).cpu().numpy()
    places = np.interp(share, (mean.square() / square).numpy(), grid.numpy())
    standard = torch.from_numpy(np.asarray(places)).to(first).reshape(first.shape)
    return standard, first / rectified(standard, torch.ones_like(standard))[0]


def greatest_normal(count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of M, the greatest of n independent standard normal variables, elementwise in n."""
    first, second = greatest_rectified(torch.full_like(count, _END), count)
    return first - _END, second - first.square()


def greatest_rectified(standard: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(t + M, 0)] and E[max(t + M, 0)²], M the greatest of n standard normal variables, elementwise.

    ∫ (1 - Φ(z)ⁿ) dz and ∫ 2(t + z) (1 - Φ(z)ⁿ) dz from -t on, t = `standard`; n = `count` need not be whole. It is
    the greatest of n rectified variables max(t + z, 0) as well.
    """
    start = (-standard).clamp(-_END, _END)
    # Below the start, where 1 - Φⁿ is 1.
    first = (standard - _END).clamp_min(0)
    second = first.square()
    for low, high in ((start.clamp_max(0), 0.0), (start.clamp_min(0), _END)):
        half = (high - low) / 2
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            z = low + half * (1 + node)
            above = weight * half * (1 - ndtr(z) ** count)
            first, second = first + above, second + 2 * (standard + z) * above
    return first, second
