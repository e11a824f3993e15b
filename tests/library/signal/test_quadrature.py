"""Expectations and gains of activations and of maxima, against closed forms and integrals of mpmath."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import mpmath
import pytest
import torch
from torch import nn

from normless.nn._activation import ShiftedActivation
from normless.signal._quadrature import activation_gain, normal_maximum, normal_moments, rectified_maximum

# Var[φ(z)] by hand: a leaky slope s gives (1 + s²)/2 - (1 - s)²/(2π).
CLOSED = [
    (nn.ReLU(), sqrt(2 / (1 - 1 / pi))),
    (nn.LeakyReLU(0.2), ((1 + 0.2**2) / 2 - 0.8**2 / (2 * pi)) ** -0.5),
    (nn.PReLU(), ((1 + 0.25**2) / 2 - 0.75**2 / (2 * pi)) ** -0.5),
    (nn.Identity(), 1.0),
]


@pytest.mark.parametrize(("activation", "gain"), CLOSED, ids=lambda value: type(value).__name__)
def test_closed_forms(activation: nn.Module, gain: float) -> None:
    # PReLU's slope 0.25 is exact in float32; the other slopes are float64.
    assert activation_gain(activation) == pytest.approx(gain, rel=1e-12)


def gelu(x: Any) -> Any:
    return x * mpmath.ncdf(x)


# The function in mpmath and its kinks.
FUNCTIONS: dict[str, tuple[nn.Module, Callable[[Any], Any], list[float]]] = {
    "relu": (nn.Threshold(0.0, 0.0), lambda x: max(x, 0), [0]),
    "relu6": (nn.ReLU6(), lambda x: min(max(x, 0), 6), [0, 6]),
    "hard shrink": (nn.Hardshrink(0.5), lambda x: x if abs(x) > 0.5 else 0, [-0.5, 0.5]),
    "elu": (nn.ELU(), lambda x: x if x > 0 else mpmath.expm1(x), [0]),
    "gelu": (nn.GELU(), gelu, []),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-1.3, 0.4)])
def test_expectations_are_exact_to_ten_digits(name: str, mean: float, deviation: float) -> None:
    """Against adaptive quadrature of mpmath, split at the kinks."""
    activation, function, places = FUNCTIONS[name]
    result = normal_moments(activation, *torch.tensor([[[mean]], [[deviation**2]]], dtype=torch.float64))
    corners = [mean + k * deviation for k in range(-12, 13, 2)] + [-8.0, -2.0, 0.0, 2.0, 8.0, *places]
    corners = sorted(place for place in set(corners) if abs(place - mean) <= 12 * deviation)

    def expected(value: Callable[[Any], Any]) -> float:
        def integrand(x: Any) -> Any:
            return value(x) * mpmath.npdf(x, mean, deviation)

        return float(mpmath.quad(integrand, corners))

    first = expected(function)
    variance = expected(lambda x: (function(x) - first) ** 2)
    assert float(result[0]) == pytest.approx(first, rel=1e-10, abs=1e-13)
    assert float(result[1]) == pytest.approx(variance, rel=1e-10, abs=1e-13)


def test_kinks_of_a_shifted_activation_move() -> None:
    shifted = ShiftedActivation(nn.ReLU6())
    shifted.add_part("input_bias", torch.ones(1))
    nn.init.constant_(shifted.get_parameter("input_bias"), 0.625)
    mean, variance = torch.tensor([[[0.3]], [[2.0]]], dtype=torch.float64)
    plain = normal_moments(nn.ReLU6(), mean + 0.625, variance)
    with torch.no_grad():
        torch.testing.assert_close(normal_moments(shifted, mean, variance), plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("slopes", [(0.25, 0.25), (0.25, 2.0), (1.0, 1.0)])
def test_slopes_per_channel_are_part_of_the_settings(slopes: tuple[float, float]) -> None:
    """E[prelu(x)] of a standard normal x is (1 - a) / √(2π)."""
    activation = nn.PReLU(2)
    with torch.no_grad():
        activation.weight.copy_(torch.tensor(slopes))
    zero, one = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    mean, _ = normal_moments(activation, zero, one)
    expected = [(1 - slope) / sqrt(2 * pi) for slope in slopes]
    assert mean.detach().flatten().tolist() == pytest.approx(expected, abs=1e-12)


def moment(power: int, count: float, shift: float | None = None) -> float:
    """∫ z^k dΦ(z)ⁿ, or of (z + shift)⁺, by mpmath."""
    start = -12.0 if shift is None else max(-shift, -12.0)

    def integrand(z: Any) -> Any:
        value = z if shift is None else shift + z
        return value**power * count * mpmath.npdf(z) * mpmath.ncdf(z) ** (count - 1)

    return float(mpmath.quad(integrand, [start, *(z for z in (-6, -3, 0, 3, 6, 12) if z > start)]))


@pytest.mark.parametrize("count", [1.0, 9.0, 2.5])
def test_moments_of_the_greatest_are_integrals(count: float) -> None:
    mean, variance = normal_maximum(torch.tensor([[count]], dtype=torch.float64))
    assert float(mean) == pytest.approx(moment(1, count), abs=1e-10)
    assert float(variance) == pytest.approx(moment(2, count) - moment(1, count) ** 2, rel=1e-10)


@pytest.mark.parametrize("count", [2.0, 9.0])
@pytest.mark.parametrize("shift", [-3.0, 1.5])
def test_moments_of_the_greatest_of_rectified_variables_are_integrals(shift: float, count: float) -> None:
    result = rectified_maximum(*torch.tensor([[[shift]], [[count]]], dtype=torch.float64))
    assert [float(one) for one in result] == pytest.approx(
        [moment(1, count, shift), moment(2, count, shift)], rel=1e-9
    )
