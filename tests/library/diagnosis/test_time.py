"""The gradient through time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diagnosed import diagnose
from torch import Tensor, nn
from torch.optim import Adam

THROUGH_TIME = {"vanishing_through_time", "exploding_through_time"}


class Recurrent(nn.Module):
    """A recurrence of tanh or of no function, with a multiple of an orthogonal matrix."""

    def __init__(self, scale: float, *, is_linear: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.step, self.last = nn.Linear(4, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 4)
        nn.init.orthogonal_(self.step.weight, scale)
        self.is_linear = is_linear

    def forward(self, x: Tensor) -> Tensor:
        state = self.read(x[:, 0])
        for place in range(1, x.shape[1]):
            state = self.step(state) + self.read(x[:, place])
            state = state if self.is_linear else state.tanh()
        return self.last(state)  # type: ignore[no-any-return]


def sequences(target: int, length: int = 60) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(64, length, 4)
    return x, x[:, target].argmax(1)


def test_the_ratio_is_that_of_autograd() -> None:
    model, (x, y) = Recurrent(0.5), sequences(0)
    found = next(
        known
        for known in diagnose(model, (x, y), optimizer=Adam(model.parameters(), 1e-3), trial_steps=20).advice
        if known.kind in THROUGH_TIME
    )
    given = x.clone().requires_grad_()
    F.cross_entropy(model.eval()(given), y).backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    steps = given.grad.double().abs().sum((0, 2))
    ratio = float(steps[-15:].max() / steps[:15].max())
    assert float(found.evidence["ratio"]) == pytest.approx(ratio, rel=1e-3)
