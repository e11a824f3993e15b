"""The gradient through time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diagnosed import diagnose
from torch import Tensor, nn
from torch.optim import Adam


class Recurrent(nn.Module):
    """A recurrence of tanh with half of an orthogonal matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.step, self.last = nn.Linear(4, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 4)
        nn.init.orthogonal_(self.step.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        state = self.read(x[:, 0])
        for place in range(1, x.shape[1]):
            state = (self.step(state) + self.read(x[:, place])).tanh()
        return self.last(state)  # type: ignore[no-any-return]


def test_the_ratio_is_that_of_autograd() -> None:
    """The label is in the first of sixty steps, of which little is left at the end."""
    model = Recurrent()
    torch.manual_seed(1)
    x = torch.randn(64, 60, 4)
    y = x[:, 0].argmax(1)
    found = next(
        known
        for known in diagnose(model, (x, y), optimizer=Adam(model.parameters(), 1e-3), trial_steps=20).advice
        if known.kind == "vanishing_through_time"
    )
    given = x.clone().requires_grad_()
    F.cross_entropy(model.eval()(given), y).backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    steps = given.grad.double().abs().sum((0, 2))
    ratio = float(steps[-15:].max() / steps[:15].max())
    assert float(found.evidence["ratio"]) == pytest.approx(ratio, rel=1e-3)
