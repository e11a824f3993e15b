"""A small training to watch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

Step = Callable[[int, nn.Module], None]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 20)
    return x, x[:, :3].argmax(1)


def train(
    model: nn.Module,
    steps: int,
    *,
    interval: int = 5,
    before: Step = lambda *_: None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: bool = True,
) -> nl.doctor.Watch:
    """Return the watch of a training, by SGD with momentum if no optimizer is given."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch = nl.watch(model, interval)
    torch.manual_seed(1)
    for step in range(1, steps + 1):
        before(step, model)
        x, y = batch()
        optimizer.zero_grad()
        value = F.cross_entropy(model(x), y)
        if loss:
            assert watch.loss(value) is value
        value.backward()
        optimizer.step()
    return watch


def at(step: int, change: Callable[[nn.Module], object]) -> Step:
    def before(now: int, model: nn.Module) -> None:
        if now == step:
            with torch.no_grad():
                change(model)

    return before
