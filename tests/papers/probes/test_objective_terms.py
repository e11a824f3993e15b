"""The L2 term beside the data's loss at initialization."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normless import convert, param_groups
from normless.models import wide_resnet
from normless_papers.probes.objective_terms import l2_share, loss_terms

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([0, 3, 3, 9])


def test_zeroinit_l2_dominates_initial_loss() -> None:
    """zeroinit/l2-dominates-initial-loss: the share of L2 grows with depth, the cross entropy does not.

    d-2 Wide-ResNets, λ = 5e-4, d in 16, 100, 202; the L2 term is λ Σ outputs of He's layers within 3%.
    """
    shares, entropies = [], []
    for depth in (16, 100, 202):
        torch.manual_seed(0)
        network = convert(wide_resnet(depth, 2), "zeroinit(keep_scale=False)")
        groups = param_groups(network, lr=0.1, weight_decay=5e-4)
        table = loss_terms(network, groups, IMAGES, TARGETS)
        shares.append(l2_share(table))
        entropies.append(table.loc[table["term"] == "data", "value"].item())
        # fan-in · outputs weights of variance 2/fan-in in every layer, the classifier's too.
        expected = 5e-4 * sum(m.weight.shape[0] for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
        assert table.loc[table["term"] == "l2", "value"].sum() == pytest.approx(expected, rel=0.03)
    assert shares[0] < 0.25 < 0.5 < shares[1] < shares[2]
    assert max(entropies) < 1.2 * min(entropies)


def test_every_term_is_what_an_optimizer_adds_up() -> None:
    """Oracle: the gradient of the sum of all terms is the gradient that SGD with weight decay follows."""
    network = convert(wide_resnet(10, 1), "fixup")
    optimizer = torch.optim.SGD(param_groups(network, lr=0.1, weight_decay=0.01, policy="all"), lr=0.1)
    table = loss_terms(network, optimizer.param_groups, IMAGES, TARGETS).set_index("group")
    decay = 0.0
    for group in optimizer.param_groups:
        value = sum(0.005 * float(parameter.detach().square().sum()) for parameter in group["params"])
        assert table.loc[group["name"], "value"] == pytest.approx(value)
        decay += value
    network.train()
    data = F.cross_entropy(network(IMAGES), TARGETS).item()
    assert table.loc["", "value"] == pytest.approx(data)
    assert table["share"].sum() == pytest.approx(1)
    assert l2_share(table.reset_index()) == pytest.approx(decay / (decay + data))
