"""Updates in function space, of weights and of γ, and the terms of an objective, against closed forms and SGD."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import normless as nl
from normless import convert, probe
from normless.models import dense, resnet, resnet_cifar
from normless_papers.fixup.updates import RectifiedNetwork, closed_form
from normless_papers.probes.gamma_rate import gamma_slopes, gamma_updates
from normless_papers.probes.training_signals import COLUMNS, WeightDynamics
from normless_papers.probes.updates import function_update_table, update_terms

IMAGES, TARGETS = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 3, 9])


def test_the_limit_is_autograds_jacobian_times_the_gradient() -> None:
    network = resnet_cifar(8).double().eval()
    inputs, targets = torch.randn(2, 3, 8, 8).double(), torch.tensor([0, 1])
    table = function_update_table(network, inputs, targets, rates=(1e-7, 1e-3))
    network.train()
    parameters = dict(network.named_parameters())

    def forward(step: float) -> Tensor:
        held = {k: v + step * g for (k, v), g in zip(parameters.items(), gradients, strict=True)}
        return torch.func.functional_call(network, held, (inputs,))

    gradients = torch.autograd.grad(F.cross_entropy(network(inputs), targets), list(parameters.values()))
    slope = (forward(1e-6) - forward(-1e-6)).detach() / 2e-6
    expected = slope.square().sum(1).mean().sqrt().item()
    assert table["predicted_update_per_rate"].to_numpy() == pytest.approx(expected, rel=1e-5)
    assert table["update_per_rate"][0] == pytest.approx(expected, rel=1e-3)
    assert table["rate"].tolist() == [1e-7, 1e-3]
    assert table["update_norm"][1] == pytest.approx(1e-3 * table["update_per_rate"][1])


@settings(max_examples=12, deadline=None)
@given(blocks=st.integers(1, 4), width=st.integers(1, 7), layers=st.integers(1, 3))
def test_fixup_theorem_3_terms_are_the_closed_form(blocks: int, width: int, layers: int) -> None:
    """fixup/theorem-3: J_l^i of a fully connected residual network, general Jacobians against the paper's formula."""
    torch.manual_seed(blocks + 10 * width)
    network = RectifiedNetwork(blocks, width, layers).double()
    x = torch.randn(1, width).double()
    with torch.no_grad():
        expected = closed_form(network, x[0])
    found = {term.parameter: term.matrix for term in update_terms(network, x)}
    assert set(found) == set(expected)
    for name, matrix in found.items():
        assert torch.allclose(matrix, expected[name], rtol=1e-9, atol=1e-12), name


def measured(network: nn.Module, inputs: Tensor) -> pd.DataFrame:
    """The weights of a network on a batch whose examples have the classes 0, 1, 2, …."""
    return probe(network, (inputs, torch.arange(len(inputs))), [WeightDynamics()])["WeightDynamics"]


def test_a_normalized_weight_is_orthogonal_to_its_gradient() -> None:
    """After a batch norm nothing depends on the weight's length: ⟨∂l/∂W, W⟩ = 0."""
    network = resnet_cifar(8)
    table = measured(network, torch.randn(8, 3, 8, 8))
    branch = table[table["place"] == "branch"]
    assert len(branch) == 6
    # ε in the norm's denominator is what is left.
    assert (branch["cosine"].abs() < 1e-3).all()
    assert (branch["gamma_last"] == 1).all()
    assert table["multiplier"].isna().all()


def test_measured_numbers_are_those_of_the_weights() -> None:
    network, inputs = convert(dense(2, 5, in_features=3), "none"), torch.randn(4, 3)
    frozen = network.get_submodule("blocks.0.branch.linear1").requires_grad_(False)
    table = measured(network, inputs)
    assert list(table.columns) == list(COLUMNS)
    F.cross_entropy(network(inputs), torch.arange(4)).backward()
    weights = {name: parameter for name, parameter in network.named_parameters() if parameter.dim() > 1}
    assert {*table["parameter"]} == {*weights}
    for name, row in table.set_index("parameter").iterrows():
        weight = weights[str(name)]
        assert row["weight_norm"] == pytest.approx(float(weight.detach().norm()))
        if weight.grad is None:
            assert weight is frozen.weight
            assert row[["gradient_norm", "inner_product", "cosine"]].isna().all()
        else:
            assert row["gradient_norm"] == pytest.approx(float(weight.grad.norm()))
            cosine = F.cosine_similarity(weight.detach().flatten(), weight.grad.flatten(), dim=0)
            assert row["cosine"] == pytest.approx(float(cosine), abs=1e-6)


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
