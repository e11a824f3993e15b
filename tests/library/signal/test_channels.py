"""Channels after activations and poolings, against published order statistics, closed forms and samples."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch
from torch import nn

from normless.signal import Step
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


LAYERS = {
    "grouped": (nn.Conv2d(6, 4, 3, groups=2), (6, 9, 9)),
    "depth-wise": (nn.Conv2d(6, 12, 3, groups=6), (6, 9, 9)),
    "linear": (nn.Linear(6, 4), (6,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_weight_layers_on_independent_inputs(name: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    mean, variance = torch.linspace(-1, 1, 6).double(), torch.linspace(0.2, 2, 6).double()
    axes = (-1, *[1] * (len(shape) - 1))
    x = mean.reshape(axes) + variance.sqrt().reshape(axes) * torch.randn(20_000 // len(shape), *shape).double()
    drawn = layer.double()(x).detach().movedim(1, 0).flatten(1)
    model = nn.Sequential(layer)
    step = Step("weight", (0,), "0", ("0.weight", "0.bias"), shifts=("0.bias",))
    result = rows_of(model, step).applied(Moments.of(mean[None], variance[None]), 1.0, 1.0, 1.0)
    second = (drawn.square()).mean(1)
    torch.testing.assert_close(result.second[0], second, rtol=0.05, atol=0.01)


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
