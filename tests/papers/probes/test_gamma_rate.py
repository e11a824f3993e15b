"""Scale invariance in γ and its effective learning rate, against steps that are really taken."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normless as nl
from normless.models import dense, resnet
from normless_papers.probes.gamma_rate import gamma_invariance, gamma_slopes, gamma_updates


def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = dense(3, 40, classes=5, in_features=20, branch_layers=2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            module.eps = 1e-9
    return model.double(), torch.randn(16, 20).double(), torch.arange(16) % 5


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_gamma_equation_22_invariance_and_gradient(factor: float) -> None:
    """gamma/equation-22: c times γ of a norm before another norm changes nothing and divides the gradient by c."""
    model, x, y = small()
    table = gamma_invariance(model, x, y, factor=factor).set_index("layer")
    inner = table[table["role"] == "other"]
    assert len(inner) == 3
    assert (inner["output_change"] < 1e-7).all()
    assert np.allclose(inner["gradient_ratio"], 1 / factor, rtol=1e-6)
    assert (inner["predicted_gradient_ratio"] == 1 / factor).all()
    assert (inner["radial_share"] < 1e-6).all()
    last = table[table["role"] == "last"]
    assert (last["output_change"] > 0.01).all()


def test_gamma_equation_24_one_step_of_the_direction() -> None:
    """gamma/equation-24: to first order the step of Γ̂ is η‖Γ‖⁻² times the gradient at Γ̂, for every role.

    The reference is torch's SGD on a copy; the gradient at Γ̂ is taken there, with γ itself set to Γ̂.
    """
    model, x, y = small()
    rate, path = 1e-4, "blocks.1.branch.norm1"
    table = gamma_updates(model, x, y, scales=(1.0, 3.0), rate=rate)
    assert np.allclose(table["update"], table["predicted_update"], rtol=1e-3)
    for scale in (1.0, 3.0):
        copy, _, _ = model, x, y
        gamma = nl.residual_map(copy).by_path[path].gamma
        assert gamma is not None
        start = copy.get_parameter(gamma).detach() * scale
        other = nl.convert(model, "batch_norm")
        with torch.no_grad():
            other.get_parameter(gamma).copy_(start)
        before = start / start.norm()
        optimizer = torch.optim.SGD([other.get_parameter(gamma)], lr=rate)
        F.cross_entropy(other(x), y).backward()
        optimizer.step()
        after = other.get_parameter(gamma).detach()
        row = table[(table["layer"] == path) & (table["varied"] == "other") & (table["scale"] == scale)].iloc[0]
        # Other norms of the role are multiplied too, which changes nothing: each is scale invariant.
        assert row["update"] == pytest.approx(float((after / after.norm() - before).norm()), rel=1e-5)
        with torch.no_grad():
            other.get_parameter(gamma).copy_(before)
        other.zero_grad()
        F.cross_entropy(other(x), y).backward()
        at_direction = other.get_parameter(gamma).grad
        assert at_direction is not None
        assert row["effective_rate"] == pytest.approx(rate / float(start.norm()) ** 2)
        assert row["update"] == pytest.approx(row["effective_rate"] * float(at_direction.norm()), rel=1e-3)


def test_slopes_of_a_known_law() -> None:
    rows = [
        {"varied": "other", "role": "other", "layer": layer, "gamma_norm": norm, "update": height * norm**-1.7}
        for layer, height in (("a", 1.0), ("b", 50.0))
        for norm in (0.5, 1.0, 3.0)
    ]
    zero = {"varied": "other", "role": "other", "layer": "a", "gamma_norm": 2.0, "update": 0.0}
    (row,) = gamma_slopes(pd.DataFrame([*rows, zero])).to_dict("records")
    assert row["slope"] == pytest.approx(-1.7)
    assert row["r_squared"] == pytest.approx(1)
    assert (row["norms"], row["points"]) == (2, 6)


def test_all_gammas_at_once_scale_the_stream_and_the_logits_so_that_the_slope_is_minus_one() -> None:
    """The derivation at gamma/figure-6, with a classifier so small that ∂L/∂z does not depend on the scale."""
    torch.manual_seed(0)
    model, inputs, targets = (
        resnet(18, channels=8, classes=5).double(),
        torch.randn(8, 3, 32, 32).double(),
        torch.arange(8) % 5,
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-12
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=1e-4)
            nn.init.zeros_(module.bias)
    slopes = gamma_slopes(gamma_updates(model, inputs, targets, scales=(0.5, 1.0, 2.0)))
    together = slopes[slopes["varied"] == "all"].set_index("role")["slope"]
    assert together.to_numpy() == pytest.approx(-1, abs=1e-3)
    alone = slopes[slopes["varied"] == "other"]["slope"]
    assert alone.to_numpy() == pytest.approx(-2, abs=1e-3)
    logits, stream = [], []
    for scale in (1.0, 3.0):
        scaled = nl.convert(model, "batch_norm", inputs)
        with torch.no_grad():
            for module in scaled.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.mul_(scale)
        logits.append(scaled.train()(inputs).detach())
        stream.append(nl.probe(scaled, inputs, ["stream"]).stream["stream_variance"].to_numpy())
    assert torch.allclose(logits[1], 3 * logits[0])
    assert np.allclose(stream[1], 9 * stream[0])
