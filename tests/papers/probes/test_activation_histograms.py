"""Histograms of activations and gradients, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from measured import measured
from torch import Tensor, nn

from normless.models import wide_resnet
from normless.residual import Layer, ResidualMap
from normless_papers.probes.histograms import (
    ActivationHistograms,
    OutputGradientHistograms,
    ParameterGradientHistograms,
)

ONE = ResidualMap((), stem_layers=(Layer("0", "weight", parameters=("0.weight", "0.bias")),))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 30), st.integers(0, 10**6))
def test_bins_are_those_of_numpy(examples: int, channels: int, side: int, bins: int, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = nn.Sequential(nn.Conv2d(2, channels, 1), nn.Flatten()), torch.randn(examples, 2, side, side)
    with torch.no_grad():
        y = model[0](x).double().numpy()
    table = measured(ActivationHistograms(bins, channels=range(channels)), model, x, residual_map=ONE)
    assert len(table) == channels * bins
    for channel, rows in table.groupby("channel"):
        counts, edges = np.histogram(y[:, channel], bins=bins)
        np.testing.assert_array_equal(rows["count"], counts)
        np.testing.assert_allclose(rows["low"], edges[:-1])
        np.testing.assert_allclose(rows["high"], edges[1:])
        assert (rows["density"] * (rows["high"] - rows["low"])).sum() == pytest.approx(1)
    together = measured(ActivationHistograms(bins), model, x, residual_map=ONE)
    np.testing.assert_array_equal(together["count"], np.histogram(y, bins=bins)[0])
    assert together["channel"].isna().all()


def test_gradients_of_parameters_and_outputs_are_those_of_autograd() -> None:
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    told = measured(ParameterGradientHistograms(12, ["blocks.0.conv1.weight"]), model, x, targets)
    outputs = measured(OutputGradientHistograms(12, ["blocks.0.conv1"], [2]), model, x, targets)
    kept: list[Tensor] = []
    layer: Any = model.train().blocks[0].conv1
    layer.register_forward_hook(lambda _, __, y: kept.append(y))
    weight, output = torch.autograd.grad(F.cross_entropy(model(x), targets), [layer.weight, *kept])
    counts, edges = np.histogram(weight.numpy(), bins=12)
    assert told["count"].sum() == weight.numel()
    np.testing.assert_allclose(told["low"], edges[:-1], rtol=1e-3, atol=1e-7)
    assert np.abs(told["count"].to_numpy() - counts).sum() <= 0.02 * weight.numel()
    assert outputs["count"].sum() == output[:, 2].numel()
    assert outputs["low"].min() == pytest.approx(float(output[:, 2].min()), rel=1e-3)
