"""The effective learning rate of γ, against steps that are really taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import dense, resnet
from normless_papers.probes.gamma_rate import gamma_slopes, gamma_updates


def small() -> tuple[nn.Module, Tensor, Tensor]:
    model = dense(3, 40, classes=5, in_features=20, branch_layers=2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            module.eps = 1e-9
    return model.double(), torch.randn(16, 20).double(), torch.arange(16) % 5


def test_gamma_equation_24_one_step_of_the_direction() -> None:
    """gamma/equation-24: to first order the step of Γ̂ is η‖Γ‖⁻² times the gradient at Γ̂; steps are torch's SGD's."""
    model, x, y = small()
    rate, path = 1e-4, "blocks.1.branch.norm1"
    table = gamma_updates(model, x, y, scales=(1.0, 3.0), rate=rate)
    assert np.allclose(table["update"], table["predicted_update"], rtol=1e-3)

    def stepped(start: Tensor) -> tuple[Tensor, Tensor]:
        """γ after one step from `start`, and its gradient there."""
        network = nl.convert(model, "batch_norm")
        gamma = network.get_parameter(f"{path}.weight")
        gamma.data.copy_(start)
        F.cross_entropy(network(x), y).backward()
        torch.optim.SGD([gamma], lr=rate).step()
        assert gamma.grad is not None
        return gamma.detach(), gamma.grad

    for scale in (1.0, 3.0):
        start = model.get_parameter(f"{path}.weight").detach() * scale
        direction = start / start.norm()
        after, _ = stepped(start)
        _, at_direction = stepped(direction)
        row = table[(table["layer"] == path) & (table["varied"] == "other") & (table["scale"] == scale)].iloc[0]
        assert row["update"] == pytest.approx(float((after / after.norm() - direction).norm()), rel=1e-5)
        assert row["effective_rate"] == pytest.approx(rate / float(start.norm()) ** 2)
        assert row["update"] == pytest.approx(row["effective_rate"] * float(at_direction.norm()), rel=1e-3)


def test_the_slope_of_all_gammas_at_once_is_minus_one() -> None:
    """The derivation at gamma/figure-6, with a classifier so small that ∂L/∂z does not depend on the scale."""
    model, inputs, targets = resnet(18, channels=8), torch.randn(8, 3, 32, 32).double(), torch.arange(8)
    model.double().fc.weight.data.normal_(std=1e-4)
    nn.init.zeros_(model.fc.bias)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-12
    slopes = gamma_slopes(gamma_updates(model, inputs, targets, scales=(0.5, 1.0, 2.0))).set_index("varied")["slope"]
    assert slopes["all"].to_numpy() == pytest.approx(-1, abs=1e-3)
    assert slopes["other"] == pytest.approx(-2, abs=1e-3)
