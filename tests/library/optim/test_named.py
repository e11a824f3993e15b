"""Optimizers by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from written_networks import Written

from normless.optim import OPTIMIZERS, make_optimizer
from normless.probes import descend

INPUTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
NAMES = [name for name in OPTIMIZERS if name not in ("LBFGS", "SparseAdam", "Muon")]


def network() -> Any:
    """A perceptron with one residual block, always of the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = {"first": nn.Linear(6, 8), "hidden": nn.Linear(8, 8), "last": nn.Linear(8, 3)}
        return Written(lambda m, x: m.last((h := m.first(x)) + m.hidden(m.norm(h))), **layers, norm=nn.LayerNorm(8))


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_trains_the_groups_by_role(name: str) -> None:
    model = network()
    optimizer = make_optimizer(name, model, INPUTS)
    assert {group["name"] for group in optimizer.param_groups} > {"biases"}
    losses = list(descend(model, [(INPUTS, INPUTS[:, :3])] * 20, optimizer, loss=nn.MSELoss()))
    assert losses[-1] < losses[0]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_muon_by_name_is_that_of_torch() -> None:
    matrices = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    assert type(make_optimizer("Muon(lr=0.01)", matrices, INPUTS)) is torch.optim.Muon
    with pytest.raises(ValueError, match="2D parameters"):
        make_optimizer("Muon(lr=0.01)", network(), INPUTS)
