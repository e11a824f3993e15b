"""γ and the variance of branches and stream: equations 1 to 19 of Kim et al., on networks with random γ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.models import dense, resnet


def draw_gammas(model: nn.Module, low: float = 0.3, high: float = 1.5) -> nn.Module:
    """Random γ, and convolutions with He's initialization by fan-in and circular padding."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            nn.init.uniform_(module.weight, low, high)
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "circular"
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
    return model


def mean_square(model: nn.Module, path: str) -> float:
    return float(model.get_parameter(f"{path}.weight").detach().double().square().mean())


def stream_of(model: nn.Module, inputs: Tensor) -> pd.DataFrame:
    return nl.probe(model, inputs, ["stream"]).stream


def test_gamma_equation_6_branch_variance_is_that_of_the_last_gamma() -> None:
    """gamma/equation-6: Var f = γ_last² for any other γ and initial weights; the stream adds them up.

    Dense pre-activation network, two layers a branch, width 400; eight blocks, each within 12%, their mean within 3%.
    """
    model = draw_gammas(dense(8, 400, branch_layers=2))
    scales = 0.3 + 0.5 * np.arange(8)
    for block, scale in zip(model.blocks, scales.tolist(), strict=True):
        nn.init.constant_(block.branch.norm2.weight, scale)
        block.branch.linear1.weight.data.mul_(10 * scale)
    table = stream_of(model, torch.randn(300, 100))
    assert (table["equation"] == 6).all()
    assert np.allclose(table["predicted_branch_second_moment"], scales**2, rtol=1e-5)
    ratio = table["branch_second_moment"] / scales**2
    assert np.allclose(ratio, 1, atol=0.12)
    assert ratio.mean() == pytest.approx(1, abs=0.03)
    assert np.allclose(table["stream_second_moment"] / table["predicted_stream_second_moment"], 1, atol=0.1)
    sums = table["skip_second_moment"][0] + np.cumsum(scales**2)
    assert np.allclose(table["predicted_stream_second_moment"], sums, rtol=1e-5)


def test_gamma_equations_15_and_19_resets_of_resnet_v1() -> None:
    """gamma/equation-15: after a projecting block (γ_down² + γ_last²)/2 for any input scale, and the same output.

    gamma/equation-19: γ_0²/2 after the stem's ReLU, pooling ignored, for any input scale.
    """
    model, images = draw_gammas(resnet(18)), torch.randn(16, 3, 48, 48)
    table = stream_of(model, images)
    resets = table[table["equation"] == 15]
    assert len(resets) == 3
    assert np.allclose(resets["branch_second_moment"], resets["gamma_last"] ** 2, rtol=1e-3)
    assert np.allclose(resets["skip_second_moment"], resets["gamma_down"] ** 2, rtol=1e-3)
    assert np.allclose(resets["stream_second_moment"], resets["predicted_stream_second_moment"], rtol=0.05)
    assert np.allclose(table["branch_second_moment"], table["predicted_branch_second_moment"], rtol=1e-3)
    again = stream_of(model, 7 * images)
    assert np.allclose(again["stream_second_moment"], table["stream_second_moment"], rtol=1e-3)
    model.train()
    with torch.no_grad():
        for scale in (1, 50):
            h = torch.relu(model.bn1(model.conv1(scale * images)))
            assert float(h.square().mean()) == pytest.approx(mean_square(model, "bn1") / 2, rel=0.05)
    assert table["predicted_skip_second_moment"][0] == pytest.approx(mean_square(model, "bn1") / 2)
