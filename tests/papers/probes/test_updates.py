"""Updates in function space and the terms of an objective, against closed forms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless import convert, param_groups
from normless.models import resnet_cifar, wide_resnet
from normless_papers.fixup.updates import RectifiedNetwork, closed_form
from normless_papers.probes.training_signals import l2_share, loss_terms
from normless_papers.probes.updates import function_update_table, update_terms

IMAGES, TARGETS = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 3, 3, 9])


@pytest.mark.parametrize("training", [True, False])
def test_the_limit_is_autograds_jacobian_times_the_gradient(training: bool) -> None:
    network = resnet_cifar(8).double().train(not training)
    inputs, targets = torch.randn(2, 3, 8, 8).double(), torch.tensor([0, 1])
    table = function_update_table(network, inputs, targets, rates=(1e-7, 1e-3), training=training)
    network.train(training)
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


def test_zeroinit_l2_dominates_initial_loss() -> None:
    """zeroinit/l2-dominates-initial-loss: λ Σ outputs of He's layers grows with depth, the cross entropy does not."""
    shares, entropies = [], []
    for depth in (16, 100):
        torch.manual_seed(0)
        network = convert(wide_resnet(depth, 2), "zeroinit(keep_scale=False)")
        table = loss_terms(network, param_groups(network, lr=0.1, weight_decay=5e-4), IMAGES, TARGETS)
        shares.append(l2_share(table))
        entropies.append(table.loc[table["term"] == "data", "value"].item())
        # fan-in · outputs weights of variance 2/fan-in in every layer, the classifier's too.
        expected = 5e-4 * sum(m.weight.shape[0] for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
        assert table.loc[table["term"] == "l2", "value"].sum() == pytest.approx(expected, rel=0.03)
    assert shares[0] < 0.25 < 0.5 < shares[1]
    assert max(entropies) < 1.2 * min(entropies)
