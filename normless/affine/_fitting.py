"""Fit affine maps per channel, and pointwise functions, to the outputs of a norm that they replace."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# A variance below this share of the second moment consists of rounding errors.
_ROUNDING = 1e-10
# How much of the norm's deviation a larger α of a pointwise function may cost. With 0.01, γ is so large that SGD
# diverges at the rate of the other methods (benchmarks/trained_conversions.py).
_TOLERANCE = 0.05
# α times the largest |x|, and times the deviation of x, at the ends of the search, and the points between.
_LEAST, _MOST, _POINTS = 1e-2, 1e2, 161
# Values from which α is found.
_SEARCHED = 2**17


def matching(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and c, (C,) in float64, so that a·z + c has the mean and the deviation of y in each channel.

        a = ± σ(y) / σ(z),   c = mean(y) − a · mean(z)

    for z and y of shape (C, n), with the sign of their covariance. Where z is constant, or is not correlated with y,
    a = 1; where y alone is constant, a = 0.
    """
    z, y = z.double(), y.double()
    variances = [variance_of(x) for x in (z, y)]
    ratio = (variances[1] / variances[0].clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
    a = torch.where(_covariance(z, y) < 0, -ratio, ratio)
    a = torch.where(variances[0] > 0, a, 1.0)
    return a, y.mean(1) - a * z.mean(1)


def fit_pointwise(x: Tensor, y: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[float, Tensor, Tensor]:
    """Return α and, in float64, γ and β, (C,), so that γ·φ(αx) + β is close to y, (C, n), in least squares.

    For each α, γ and β are those of the linear regression of y on φ(αx) in each channel. α is the value with the
    least error, relative to the deviation of y. Where a line fits within 0.05 of that, as after a batch norm, α is
    the largest value that does: α near 0 would make φ a line, and γ grows as 1/α.
    """
    every = max(1, x.numel() // _SEARCHED)
    few, known = x[:, ::every].double(), y[:, ::every].double()
    extent, spread = float(few.abs().max()), float(few.square().mean().sqrt())
    if not extent > 0:
        return 1.0, torch.ones(len(x), dtype=torch.float64), y.double().mean(1)

    start, stop = torch.tensor([_LEAST / extent, _MOST / spread], dtype=torch.float64).log().tolist()
    grid = torch.linspace(start, stop, _POINTS, dtype=torch.float64).exp().tolist()
    errors = [_unexplained(function(alpha * few), known) for alpha in grid]
    at = errors.index(min(errors))
    allowed = errors[at] + _TOLERANCE
    while errors[0] <= allowed and at + 2 < _POINTS and errors[at + 1] <= allowed:
        at += 1
    return grid[at], *_regression(function(grid[at] * x.double()), y.double())


def _regression(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return slope and intercept of y on z in each channel; slope 1 where z is constant."""
    variance = variance_of(z)
    slope = torch.where(variance > 0, _covariance(z, y) / variance.clamp_min(torch.finfo(torch.float64).tiny), 1.0)
    return slope, y.mean(1) - slope * z.mean(1)


def _unexplained(z: Tensor, y: Tensor) -> float:
    """Return the root of the share of the variance of y that the regression on z leaves."""
    slope, intercept = _regression(z, y)
    rest = (y - slope[:, None] * z - intercept[:, None]).square().mean()
    return float((rest / (y - y.mean(1, keepdim=True)).square().mean().clamp_min(1e-300)).sqrt())


def _covariance(z: Tensor, y: Tensor) -> Tensor:
    """Return the covariance of each channel, (C,)."""
    return ((z - z.mean(1, keepdim=True)) * (y - y.mean(1, keepdim=True))).mean(1)


def variance_of(x: Tensor) -> Tensor:
    """Return the variance of each channel, (C,), and 0 where it is a rounding error."""
    variance = x.var(1, correction=0)
    return torch.where(variance > _ROUNDING * x.square().mean(1), variance, 0.0)
