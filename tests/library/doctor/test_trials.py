"""A network that has learned its batch has nothing wrong with it."""

from __future__ import annotations

import torch
from diagnosed import diagnose, kinds
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam


def test_a_trained_network_has_little_left_to_learn() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 6)
    batch = x, (x[:, 0] > 0).long()
    network = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = Adam(network.parameters(), 1e-2)
    for _ in range(500):
        optimizer.zero_grad()
        F.cross_entropy(network(x), batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for other in (SGD(network.parameters(), 1e-4), Adam(network.parameters(), 1e-2)):
        assert not kinds(diagnose(network, batch, optimizer=other, trial_steps=10))
