"""Histograms of activations and gradients, against numpy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from cifar_like import BARE, NORMALIZED, images, resnet110
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import measured
from torch import Tensor, nn

from normless.models import wide_resnet
from normless.probes import ChannelMoments
from normless.residual import Layer, ResidualMap
from normless_papers.probes.histograms import (
    ActivationHistograms,
    OutputGradientHistograms,
    ParameterGradientHistograms,
    peak_counts,
)

ONE = ResidualMap((), stem_layers=(Layer("0", "weight", parameters=("0.weight", "0.bias")),))


class Flat(nn.Sequential):
    """Logits of whatever shape, as rows."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y.flatten(1)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 30), st.integers(0, 10**6))
def test_bins_are_those_of_numpy(examples: int, channels: int, side: int, bins: int, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Flat(nn.Conv2d(2, channels, 1)), torch.randn(examples, 2, side, side)
    with torch.no_grad():
        y = model[0](x).double().numpy()
    chosen = list(range(channels))
    table = measured(ActivationHistograms(bins, channels=chosen), model, x, residual_map=ONE)
    assert len(table) == channels * bins
    for channel in chosen:
        rows = table[table["channel"] == channel]
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
    model.train().blocks[0].conv1.register_forward_hook(lambda _, __, y: (y.retain_grad(), kept.append(y))[0])
    F.cross_entropy(model(x), targets).backward()
    weight = model.blocks[0].conv1.weight.grad
    assert weight is not None
    counts, edges = np.histogram(weight.numpy(), bins=12)
    assert told["count"].sum() == weight.numel()
    np.testing.assert_allclose(told["low"], edges[:-1], rtol=1e-3, atol=1e-7)
    assert np.abs(told["count"].to_numpy() - counts).sum() <= 0.02 * weight.numel()
    gradient = kept[0].grad
    assert gradient is not None
    assert outputs["count"].sum() == gradient[:, 2].numel()
    assert outputs["low"].min() == pytest.approx(float(gradient[:, 2].min()), rel=1e-3)


@pytest.mark.parametrize(("centres", "expected"), [([0.0], 1), ([-4.0, 4.0], 2), ([-8.0, 0.0, 8.0], 3)])
def test_modes_are_counted(centres: list[float], expected: int) -> None:
    samples = torch.cat([centre + torch.randn(4000) for centre in centres])
    counts, edges = np.histogram(samples.numpy(), bins=60)
    table = pd.DataFrame({"count": counts, "low": edges[:-1], "high": edges[1:], "layer": "x", "order": 1})
    table = table.assign(parameter=None, call=0, channel=0)
    assert peak_counts(table)["peaks"].tolist() == [expected]
    with pytest.raises(ValueError, match=r"in \(0, 1\], not 0"):
        peak_counts(table, prominence=0)


LAYERS = {9: "blocks.3.conv2", 45: "blocks.21.conv2", 81: "blocks.39.conv2", 83: "blocks.40.conv2"}


SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def channels() -> pd.DataFrame:
    """Of both networks by layer, means over seeds: |mean|, that over the deviation, and the number of modes."""
    tables = []
    for scheme in (BARE, NORMALIZED):
        for seed in SEEDS:
            model, x = resnet110(scheme, seed), images(16, 16, seed)
            moments = measured(ChannelMoments(), model, x).set_index("order").loc[list(LAYERS)]
            assert list(moments["layer"]) == list(LAYERS.values())
            modes = peak_counts(measured(ActivationHistograms(60, list(LAYERS.values()), range(16)), model, x))
            moments["relative_mean"] = moments["abs_mean"] / np.sqrt(moments["variance"])
            moments["modes"] = modes.groupby("order")["peaks"].mean().astype(float)
            tables.append(moments[["abs_mean", "relative_mean", "modes"]].assign(scheme=scheme).reset_index())
    return pd.concat(tables).groupby(["scheme", "order"]).mean()
