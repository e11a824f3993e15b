"""Signal propagation at initialization, compared with closed forms of the papers."""

from __future__ import annotations

from math import pi

import numpy as np
import pandas as pd
import pytest
import torch

from normless import convert
from normless.models import dense, wide_resnet
from normless.probes import probe

DEPTH = 20


def worst(ratio: pd.Series) -> float:
    """The largest relative deviation of a ratio from 1."""
    return float((ratio - 1).abs().max())


def test_dense_networks_follow_the_theory_at_every_depth() -> None:
    """De & Smith, appendices B and C, figures 2 and 5: width 1000, 100 inputs; one draw of the weights each."""
    torch.manual_seed(1)
    inputs = torch.randn(250, 100)
    linear = dense(DEPTH, relu=False)
    depth = pd.Series(range(1, DEPTH + 1), dtype=float)

    bare = probe(convert(linear, "none"), inputs, ["signal"]).signal
    assert worst(bare["sum_variance"] / 2**depth) < 0.10
    assert worst(bare["branch_variance"] / bare["skip_variance"]) < 0.10

    normalized = probe(linear, inputs, ["signal"]).signal
    assert worst(normalized["skip_variance"] / depth) < 0.10
    assert worst(normalized["branch_variance"]) < 0.10
    assert worst(normalized["norm_variance"] / depth) < 0.10
    assert (normalized["norm_mean_square"] < 1e-3 * depth).all()

    relu = probe(dense(DEPTH, relu=True), inputs, ["signal"]).signal
    assert worst(relu["skip_variance"] / depth) < 0.10
    assert worst(relu["branch_variance"]) < 0.10
    assert worst(relu["norm_mean_square"] / (depth / pi)) < 0.10
    assert worst(relu["norm_variance"] / (depth * (1 - 1 / pi))) < 0.10


@pytest.mark.parametrize(("scheme", "base"), [("sqrt2", 1.0), ("skipinit", 1.0), ("skipinit(alpha=1)", 2)])
def test_predictions_are_the_closed_forms(scheme: str, base: float) -> None:
    inputs = torch.randn(200, 400)
    model = convert(dense(12, 400, in_features=400, relu=False), scheme)
    predicted = probe(model, inputs, ["signal"]).signal["predicted_sum_variance"]
    start = probe(model, inputs, ["signal"]).signal["predicted_skip_variance"][0]
    assert np.allclose(predicted / start, base ** np.arange(1, 13), rtol=0.05)


def test_measured_values_are_those_of_a_plain_forward_pass() -> None:
    model = wide_resnet(10, 1)
    inputs = torch.randn(5, 3, 8, 8)
    table = probe(model, inputs, ["signal"]).signal
    h = model.stem(inputs)
    skip, branch = (
        h,
        model.blocks[0].conv2(
            torch.relu(model.blocks[0].norm2(model.blocks[0].conv1(torch.relu(model.blocks[0].norm1(h)))))
        ),
    )
    assert table["skip_variance"][0] == pytest.approx(float(skip.detach().double().var(correction=0)), rel=1e-6)
    assert table["branch_variance"][0] == pytest.approx(float(branch.detach().double().var(correction=0)), rel=1e-6)
    channels = skip.detach().double().transpose(0, 1).flatten(1)
    assert table["norm_mean_square"][0] == pytest.approx(float(channels.mean(1).square().mean()), rel=1e-6)
    assert table["norm_variance"][0] == pytest.approx(float(channels.var(1, correction=0).mean()), rel=1e-6)
