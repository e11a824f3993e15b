"""Channels and streams after activations and poolings, against published numbers, closed forms and samples."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch
from torch import nn

from normless.signal import Step, Stream
from normless.signal.moments import Moments, maximum
from normless.signal.weights import rows_of


def of(mean: float, variance: float) -> Moments:
    return Moments.of(*torch.tensor([[[mean]], [[variance]]], dtype=torch.float64))


@pytest.mark.parametrize(("count", "mean", "variance"), [(2, 1 / sqrt(pi), 1 - 1 / pi), (9, 1.485013, 0.357353)])
def test_the_greatest_of_normal_numbers(count: int, mean: float, variance: float) -> None:
    """Harter (1961), table 1, and Teichroew (1956): moments of the largest of n standard normal numbers."""
    result = maximum(of(3.0, 4.0), count)
    assert float(result.mean) == pytest.approx(3 + 2 * mean, rel=1e-6)
    assert float(result.variance) == pytest.approx(4 * variance, rel=1e-5)


def test_a_transposed_convolution_whose_outputs_meet_one_tap_each() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2, bias=False)
    drawn = layer(torch.randn(2_000, 6, 5, 5)).detach().movedim(1, 0).flatten(1)
    result = rows_of(nn.Sequential(layer), Step("weight", (0,), "0", ("0.weight",))).applied(
        Moments.standard(), 1.0, 1.0, 1.0
    )
    torch.testing.assert_close(result.variance[0], drawn.square().mean(1).double(), rtol=0.05, atol=0.01)


def test_gates_and_sums_of_independent_signals() -> None:
    product = of(1.0, 1.0).product(of(0.5, 0.25))
    assert product.power == pytest.approx(2 * 0.5)
    assert float(product.mean) == pytest.approx(0.5)
    total = of(1.0, 1.0).plus(of(0.5, 0.25))
    assert (float(total.mean), float(total.variance)) == pytest.approx((1.5, 1.25))
    assert of(2.0, 1.0).averaged(4).power == pytest.approx(4.25)


def test_without_activations_the_variance_adds_up_exactly() -> None:
    stream = Stream.standard()
    for _ in range(50):
        stream = stream.plus(0.04)
    assert stream.variance == pytest.approx(3.0, rel=1e-14)


def test_a_rectified_normal() -> None:
    assert Stream.standard().through(nn.ReLU()).variance == pytest.approx((1 - 1 / pi) / 2, rel=2e-3)
    assert Stream.standard().plus(3).through(nn.ReLU()).variance == pytest.approx(2 * (1 - 1 / pi), rel=2e-3)
    assert Stream.standard().through(nn.Identity()).variance == pytest.approx(1, rel=2e-3)


def test_a_rectified_random_walk_agrees_with_samples() -> None:
    """h ← relu(h + αz) thirty times, with zeros added half-way, on 10⁶ elements."""
    stream, samples = Stream.standard().through(nn.ReLU()), torch.randn(10**6, dtype=torch.float64).relu()
    for step in range(30):
        if step == 15:
            stream = stream.padded(0.5)
            samples = samples * (torch.rand(10**6) < 0.5)
        stream = stream.plus(0.04).through(nn.ReLU())
        samples = (samples + 0.2 * torch.randn(10**6, dtype=torch.float64)).relu()
        assert stream.variance == pytest.approx(samples.var().item(), rel=0.01)
        assert stream.values.mean() == pytest.approx(samples.mean().item(), rel=0.01)
