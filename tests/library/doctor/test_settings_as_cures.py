"""Cures by settings of the optimizer and by new initial weights: tried, and said with what they reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosed import diagnose, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from normless.doctor.experiments._cures import INITIALIZE, initialized
from normless.doctor.experiments._engine import set_groups
from normless.doctor.facts._held import decay_per_step


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))


def pairs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(32, 6), torch.arange(32) % 2


def loss_after(network: nn.Module, batch: tuple[Tensor, Tensor], optimizer: Optimizer, steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(network(batch[0]), batch[1]).backward()
        optimizer.step()
    return F.cross_entropy(network(batch[0]), batch[1]).item()


@pytest.mark.parametrize(
    ("kind", "name", "given"),
    [
        ("rate_too_large", "lr", {"lr": 300.0}),
        ("ascent", "maximize", {"maximize": True}),
    ],
)
def test_the_settings_of_a_cure_train(kind: str, name: str, given: dict[str, Any]) -> None:
    network, batch = net(), pairs()
    optimizer = SGD(network.parameters(), **{"lr": 0.1} | given)
    (found,) = diagnose(network, batch, optimizer=optimizer, trial_steps=20).findings
    assert found.kind == kind
    assert list(found.cure.settings) == [name]
    before = loss_after(network, batch, optimizer, 0)
    set_groups(optimizer, found.cure.settings)
    reached = loss_after(network, batch, optimizer, 60)
    assert reached < 0.98 * before
    assert f"from {before:.3g} to {reached:.3g}" in found.cure.words


def test_initial_weights_that_are_offered_were_tried() -> None:
    """Fourteen layers of a tenth of He's deviation get a finding; drawn by the fan-in, they train."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(50, 50), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(50, 10))
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, std=0.1 * (2 / 50) ** 0.5)
        nn.init.zeros_(layer.bias)
    found = diagnose(network, vectors(), optimizer=Adam(network.parameters(), 1e-5), trial_steps=20).findings[0]
    assert found.kind == "vanishing_signal"
    assert found.cure.schemes == ()
    assert list(found.cure.losses) == [INITIALIZE]
    fresh = initialized(network)
    assert float(fresh[0].weight.detach().std()) == pytest.approx((2 / 50) ** 0.5, rel=0.1)
    assert not fresh[0].bias.any()
    assert loss_after(fresh, vectors(), Adam(fresh.parameters(), found.cure.settings["lr"]), 200) < 0.5


@pytest.mark.parametrize(("momentum", "dampening"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.9), (0.5, 0.5)])
def test_the_decay_of_a_step_is_that_which_steps_take(momentum: float, dampening: float) -> None:
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = SGD([weight], lr=1e-6, momentum=momentum, dampening=dampening, weight_decay=1.0)
    for _ in range(300):
        before = weight.item()
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    assert decay_per_step(optimizer) == pytest.approx(1 - weight.item() / before, rel=1e-2)
