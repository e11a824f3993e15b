"""Gains of activations against closed forms and samples."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest
import torch
from torch import nn

from normless.signal.activation_gain import activation_gain, applied, is_homogeneous

# Var[φ(z)] by hand: a leaky slope s gives (1 + s²)/2 - (1 - s)²/(2π).
CLOSED = [
    (nn.ReLU(), sqrt(2 / (1 - 1 / pi))),
    (nn.ReLU(inplace=True), sqrt(2 / (1 - 1 / pi))),
    (nn.LeakyReLU(0.2), ((1 + 0.2**2) / 2 - 0.8**2 / (2 * pi)) ** -0.5),
    (nn.PReLU(), ((1 + 0.25**2) / 2 - 0.75**2 / (2 * pi)) ** -0.5),
    (nn.Identity(), 1.0),
]


@pytest.mark.parametrize(("activation", "gain"), CLOSED, ids=lambda value: type(value).__name__)
def test_closed_forms(activation: nn.Module, gain: float) -> None:
    # PReLU's slope 0.25 is exact in float32; the others hold theirs in float64.
    assert activation_gain(activation) == pytest.approx(gain, rel=1e-12)


@pytest.mark.parametrize(
    "activation",
    [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ReLU6(), nn.Hardswish(), nn.Tanh(), nn.Sigmoid(), nn.ELU(), nn.Mish()],
    ids=repr,
)
def test_samples(activation: nn.Module) -> None:
    """10⁶ draws: the standard error of a variance is below 0.3% for these, of its root half of that."""
    z = torch.randn(10**6, dtype=torch.float64)
    assert activation_gain(activation) == pytest.approx(activation(z).std().item() ** -1, rel=6e-3)


def test_a_constant_activation_has_no_finite_gain() -> None:
    assert activation_gain(nn.Threshold(100.0, 1.0)) == np.inf


def test_a_slope_per_channel_is_averaged_over_channels() -> None:
    activation = nn.PReLU(2)
    with torch.no_grad():
        activation.weight.copy_(torch.tensor([0.0, 1.0]))
    # One channel is relu(z), the other z: together E[x²] = 3/4 and E[x] = 1/(2√(2π)).
    assert activation_gain(activation) == pytest.approx((3 / 4 - 1 / (8 * pi)) ** -0.5, rel=1e-12)


def test_the_module_stays_as_it_is() -> None:
    activation = nn.RReLU().train()
    values = np.linspace(-1, 1, 5)
    before = values.copy()
    assert np.array_equal(applied(activation, values), applied(activation, values))
    assert activation.training
    applied(nn.ReLU(inplace=True), values)
    assert np.array_equal(values, before)


def test_parameters_without_values_are_refused() -> None:
    with pytest.raises(RuntimeError, match="The parameters of this PReLU have no values"):
        activation_gain(nn.PReLU(device="meta"))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (nn.ReLU(), True),
        (nn.LeakyReLU(0.3), True),
        (nn.PReLU(3), True),
        (nn.ReLU6(), False),
        (nn.SiLU(), False),
        (nn.Hardtanh(-20, 20), False),
        (nn.Tanh(), False),
    ],
    ids=repr,
)
def test_homogeneous(activation: nn.Module, expected: bool) -> None:
    assert is_homogeneous(activation) is expected
