"""Moments of channels and gradients, against numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from scipy.stats import kurtosis
from torch import nn

from normless.models import wide_resnet
from normless.probes import probe
from normless.residual import Layer, ResidualMap

CHAIN = ResidualMap(
    (), stem_layers=(Layer("0", "weight"), Layer("1", "activation"), Layer("2", "weight", parameters=("2.weight",)))
)


def conv_chain(inputs: int, channels: int, *, inplace: bool = False) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, channels, 3), nn.ReLU(inplace), nn.Conv2d(channels, 2, 1))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(3, 6), st.booleans(), st.integers(0, 10**6)
)
def test_channel_moments_are_those_of_numpy(
    examples: int, inputs: int, channels: int, side: int, inplace: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model, x = conv_chain(inputs, channels, inplace=inplace), torch.randn(examples, inputs, side, side + 1)
    row = probe(model, x, ["activations"], residual_map=CHAIN).activations.iloc[0]
    with torch.no_grad():
        y = model[0](x).double().numpy()
    mean, variance = np.abs(y.mean(axis=(0, 2, 3))), y.var(axis=(0, 2, 3))
    low, high = y.min(axis=(0, 2, 3)), y.max(axis=(0, 2, 3))
    assert row["order"] == 1
    assert row["layer"] == "0"
    # Sums of float32, in units of the largest output.
    rounding = 1e-5 * np.abs(y).max()
    assert row["abs_mean"] == pytest.approx(mean.mean(), abs=rounding)
    assert row["abs_mean_spread"] == pytest.approx(mean.std(), abs=rounding)
    assert row["variance"] == pytest.approx(variance.mean(), abs=rounding**2, rel=1e-4)
    assert row["variance_spread"] == pytest.approx(variance.std(), abs=rounding**2, rel=1e-3)
    assert row["always_on"] == (low > 0).mean()
    assert row["always_off"] == (high <= 0).mean()
    if y.std() > 1e-2 * np.abs(y).max():
        assert row["kurtosis"] == pytest.approx(kurtosis(y, axis=None, fisher=False), rel=1e-3)


def test_gradient_moments_are_those_of_autograd() -> None:
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    table = probe(model, (x, targets), ["gradients"]).gradients.set_index("parameter")
    F.cross_entropy(model.train()(x), targets).backward()
    assert list(table.index) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        g, row = parameter.grad.double().numpy().ravel(), table.loc[name]
        # Biases before a norm have the gradient 0, up to rounding.
        close = {"rel": 1e-4, "abs": 1e-6}
        assert row["size"] == len(g)
        assert row["norm"] == pytest.approx(np.linalg.norm(g), **close)
        assert row["mean_abs"] == pytest.approx(np.abs(g).mean(), **close)
        assert row["max_abs"] == pytest.approx(np.abs(g).max(), **close)
        assert row["standard_deviation"] == pytest.approx(g.std(), **close)
        assert row["parameter_norm"] == pytest.approx(float(parameter.detach().norm()), rel=1e-5)
        if row["norm"] > 1e-3 and len(g) > 1:
            assert row["kurtosis"] == pytest.approx(kurtosis(g, fisher=False), rel=1e-3)
