"""Moments of a rectified sum of which one part is a ReLU's output itself: the stream of ResNet-V1."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import torch
from torch import Tensor

# A nonnegative part is spread over this many equally likely values, those at zero aside.
_VALUES = 24


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(x, 0)] and E[max(x, 0)²] of x ~ N(mean, variance), elementwise."""
    deviation = variance.clamp_min(0).sqrt()
    standard = mean / deviation.clamp_min(1e-300)
    above = torch.special.ndtr(standard)
    density = torch.exp(-standard.square() / 2) / sqrt(2 * pi)
    return mean * above + deviation * density, (mean.square() + variance) * above + mean * deviation * density


def rectified_sum(first: Tensor, second: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E[max(p + x, 0)] and its second moment, of x ~ N(mean, variance) and an independent p ≥ 0, elementwise.

    p is taken to be a rectified normal number, as behind one ReLU; exact where x is zero.

    Args:
        first, second: E[p] and E[p²].
        mean, variance: of x.
    """
    standard, deviation = _underlying(first, second)
    below = torch.special.ndtr(-standard)
    totals = [part * below for part in rectified(mean, variance)]
    plain = [torch.zeros_like(first), torch.zeros_like(first)]
    for index in range(_VALUES):
        level = below + (1 - below) * (index + 0.5) / _VALUES
        value = deviation * (standard + torch.special.ndtri(level)).clamp_min(0)
        weight = (1 - below) / _VALUES
        for power, part in enumerate(rectified(mean + value, variance)):
            totals[power] = totals[power] + weight * part
            plain[power] = plain[power] + weight * value ** (power + 1)
    # What the few values miss of p itself is known.
    return totals[0] + first - plain[0], totals[1] + second - plain[1]


def _underlying(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """t and σ for which max(σ·(t + z), 0) with standard normal z has these moments."""
    grid = torch.linspace(-6, 30, 4001, dtype=torch.float64)
    mean, square = rectified(grid, torch.ones_like(grid))
    share = (first.square() / second.clamp_min(1e-300)).cpu().numpy()
    found = np.interp(share, (mean.square() / square).numpy(), grid.numpy())
    standard = torch.from_numpy(np.asarray(found)).to(first).reshape(first.shape)
    return standard, first / rectified(standard, torch.ones_like(standard))[0]
