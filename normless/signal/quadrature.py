"""Expectations of activations of normal inputs, by a quadrature that is exact at kinks."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from math import inf, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normless.errors import MissingValuesError

Values = NDArray[np.float64]
Function = Callable[[Tensor], Tensor]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
# In standard deviations; what lies beyond the first and last is 1e-19 of the probability.
_PANELS = (-9.0, -3.0, 3.0, 9.0)
# Between these inputs the usual smooth activations bend; panels end there where inputs spread far beyond them.
_BENDS = (-24.0, -12.0, -6.0, -2.0, 2.0, 6.0, 12.0, 24.0)
_WIDE = 1.0
# Kinks are searched for in intervals between ±_REACH, each halved until it is 2^-30 wide.
_REACH, _INTERVALS, _HALVINGS = 32.0, 512, 27


def in_double(activation: nn.Module | Function, device: torch.device | str = "cpu") -> Function:
    """An elementwise activation as a function of float64 tensors, in evaluation mode; the module is copied."""
    if not isinstance(activation, nn.Module):
        return activation
    if any(parameter.is_meta for parameter in activation.parameters()):
        raise MissingValuesError(f"The parameters of this {type(activation).__name__} have no values.")
    # `forward` runs no hooks: those are for real activations.
    function: Function = deepcopy(activation).to(device, torch.float64).eval().forward
    return lambda x: function(x.clone())


def applied(activation: nn.Module, values: Values) -> Values:
    """An elementwise activation in float64; with a slope per channel by each of them, (n,) to (channels, n)."""
    channels = _channels(activation)
    with torch.no_grad():
        outputs = in_double(activation)(torch.from_numpy(values).expand(1, channels, -1)).numpy()
    result: Values = outputs.reshape(-1) if channels == 1 else outputs[0]
    return result


def kinks(function: Function, channels: int = 1) -> list[float]:
    """Where an elementwise function or its slope jumps, between -32 and 32, found by bisection.

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


def normal_moments(activation: nn.Module | Function, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """E[φ(x)] and Var[φ(x)] of x ~ N(mean, variance), elementwise, to about 1e-12.

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
        mean, variance = (one.expand(1, channels, *mean.shape[2:]) for one in (mean, variance))
    deviation = variance.clamp_min(0).sqrt()
    places = {0.0, *kinks(in_double(activation), channels)}
    if float(deviation.max()) > _WIDE:
        places.update(_BENDS)
    breaks = [torch.full_like(mean, z) for z in _PANELS]
    breaks += [((place - mean) / deviation.clamp_min(1e-150)).clamp(_PANELS[0], _PANELS[-1]) for place in places]
    edges = torch.stack(breaks).sort(dim=0).values
    # Moments about φ(mean): a variance far below the squared mean is not lost.
    centre = function(mean)
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    for start, end in pairwise(edges):
        half = (end - start) / 2
        if not bool(half.any()):
            continue
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            z = start + half * (1 + node)
            share = z.square().mul_(-0.5).exp_().mul_(half).mul_(weight / sqrt(2 * pi))
            value = function(mean + deviation * z).sub_(centre)
            share *= value
            first += share
            second.addcmul_(share, value)
    return centre + first, (second - first.square()).clamp_min(0)


def _channels(activation: nn.Module | Function) -> int:
    """The number of channels that have a parameter of their own, 1 where all share them."""
    parameters = activation.parameters() if isinstance(activation, nn.Module) else ()
    return max((parameter.numel() for parameter in parameters), default=1)


@torch.no_grad()
def activation_gain(activation: nn.Module) -> float:
    """γ = 1 / √Var[φ(z)] for z ~ N(0, 1): gives an activation's output unit variance (Brock et al. 2021).

    For ReLU it is √(2 / (1 - 1/π)) ≈ 1.7128; slopes per channel are averaged over; infinity for a constant φ.

    Raises:
        MissingValuesError: its parameters have no values, as on torch's device `meta`.
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
