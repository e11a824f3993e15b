"""Means and variances after layers, maxima and activations: against samples, closed forms and published numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from normless.nn._standardized import scaled_std
from normless.residual._reader import flow_of
from normless.signal._moments import Moments, activated, maximum
from normless.signal._quadrature import Stream, rectified, rectified_sum
from normless.signal._rules import Propagation
from normless.signal._weights import rows_of

close = torch.testing.assert_close


def moments_of(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0, keepdim=True), x.var(0, correction=0, keepdim=True)


def random_moments(*shape: int) -> Moments:
    zeros = torch.zeros(1, *shape).double()
    return Moments(torch.randn_like(zeros), torch.rand_like(zeros) + 0.1, zeros)


def samples(moments: Moments, count: int = 40_000) -> Tensor:
    return moments.mean + moments.variance.sqrt() * torch.randn(count, *moments.mean.shape[1:], dtype=torch.float64)


def after(module: nn.Module, moments: Moments) -> Moments | str:
    """The moments of a layer's output, by the rules of its operations."""
    p = Propagation(module, flow_of(module, (torch.zeros(2, *moments.mean.shape[1:]),), {}))
    with torch.no_grad():
        p.values.append(moments)
        p.values.extend(p.value(at) for at in range(1, len(p.flow)))
    return p.values[-1]


WEIGHTS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "conv": (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2), (6, 5, 5)),
    "circular": (lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular", bias=False), (6, 5, 5)),
    "standardized": (lambda: scaled_std(nn.Conv2d(6, 4, 3, padding=1)), (6, 5, 5)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(6, 5)), (6,)),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weight_layers_of_independent_inputs_are_exact(kind: str) -> None:
    build, shape = WEIGHTS[kind]
    module, moments = build(), random_moments(*shape)
    result = after(nn.Sequential(module), moments)
    assert isinstance(result, Moments)
    with torch.no_grad():
        mean, variance = moments_of(module.double()(samples(moments)))
    close(result.mean, mean, rtol=0.05, atol=0.05)
    close(result.variance, variance, rtol=0.06, atol=0.01)


def test_a_transposed_convolution_whose_outputs_meet_one_tap_each() -> None:
    layer = nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2, bias=False)
    x = torch.randn(2_000, 6, 5, 5)
    drawn, model = layer(x).detach().movedim(1, 0).flatten(1), nn.Sequential(layer)
    rows = rows_of(Propagation(model, flow_of(model, (x,), {}), by_position=False), 1)
    variance = rows.applied(Moments.standard(), 1.0, 1.0).variance[0]
    close(variance, drawn.square().mean(1).double(), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("function", [nn.ReLU(), F.relu, nn.GELU(), nn.LeakyReLU(0.2), nn.PReLU(3), F.silu])
def test_activations_of_normal_inputs(function: Any) -> None:
    moments = random_moments(3, 4)
    result = activated(function, moments, 10)
    double = function.double() if isinstance(function, nn.Module) else function
    with torch.no_grad():
        mean, variance = moments_of(double(samples(moments)))
    close(result.mean, mean, rtol=0.02, atol=0.02)
    close(result.variance, variance, rtol=0.05, atol=0.01)
    close(result.noise, result.variance / 10)


@settings(max_examples=25, deadline=None)
@given(st.floats(-2, 2), st.floats(0.1, 3), st.floats(-1, 1), st.floats(0, 3))
def test_a_rectified_sum_of_a_rectified_number(mean: float, deviation: float, shift: float, other: float) -> None:
    z, y = torch.randn(2, 200_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moments = rectified(*torch.tensor([[mean], [deviation**2]], dtype=torch.float64))
    result = rectified_sum(*moments, *torch.tensor([[shift], [other**2]], dtype=torch.float64))
    total = ((mean + deviation * z).clamp_min(0) + shift + other * y).clamp_min(0)
    scale = float(total.square().mean())
    assert float(result[1]) == pytest.approx(scale, rel=0.03, abs=0.01)
    assert float(result[0]) == pytest.approx(float(total.mean()), abs=0.02 * (1 + scale**0.5))


def of(mean: float, variance: float) -> Moments:
    return Moments.of(*torch.tensor([[[mean]], [[variance]]], dtype=torch.float64))


@pytest.mark.parametrize(("count", "mean", "variance"), [(2, 1 / sqrt(pi), 1 - 1 / pi), (9, 1.485013, 0.357353)])
def test_the_greatest_of_normal_numbers(count: int, mean: float, variance: float) -> None:
    """Harter (1961), table 1, and Teichroew (1956): moments of the largest of n standard normal numbers."""
    result = maximum(of(3.0, 4.0), count)
    assert float(result.mean) == pytest.approx(3 + 2 * mean, rel=1e-6)
    assert float(result.variance) == pytest.approx(4 * variance, rel=1e-5)


def test_gates_and_sums_of_independent_signals() -> None:
    product, total = of(1.0, 1.0).product(of(0.5, 0.25)), of(1.0, 1.0).plus(of(0.5, 0.25))
    assert (product.power, float(product.mean)) == pytest.approx((2 * 0.5, 0.5))
    assert (float(total.mean), float(total.variance)) == pytest.approx((1.5, 1.25))
    assert of(2.0, 1.0).averaged(4).power == pytest.approx(4.25)


def test_streams_of_sums_and_of_a_rectified_normal() -> None:
    stream = Stream.standard()
    for _ in range(50):
        stream = stream.plus(0.04)
    assert stream.variance == pytest.approx(3.0, rel=1e-14)
    assert Stream.standard().through(nn.ReLU()).variance == pytest.approx((1 - 1 / pi) / 2, rel=2e-3)
    assert Stream.standard().plus(3).through(nn.ReLU()).variance == pytest.approx(2 * (1 - 1 / pi), rel=2e-3)
    assert Stream.standard().through(nn.Identity()).variance == pytest.approx(1, rel=2e-3)
