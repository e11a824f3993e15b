"""What a network returns and what a loss takes, in every form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam


class Two(nn.Module):
    """Two heads, whose outputs are put together by a function."""

    def __init__(self, together: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.together = nn.Sequential(nn.Linear(6, 32), nn.ReLU()), together
        self.policy, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return self.together(self.policy(hidden), self.value(hidden).squeeze(-1))


@dataclass
class Outputs:
    policy: Tensor
    value: Tensor
    loss: Tensor | None = None


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] * x[:, 1]).tanh()


def both(outputs: Any, targets: Any) -> Tensor:
    policy, value = outputs.values() if isinstance(outputs, dict) else outputs
    return F.cross_entropy(policy, targets[0]) + F.mse_loss(value, targets[1])


def of_object(outputs: Outputs, targets: Any) -> Tensor:
    return both((outputs.policy, outputs.value), targets)


def of_batch(outputs: Any, batch: Any) -> Tensor:
    return both(outputs, batch[1]) + 0 * batch[0].sum()


def of_unnamed_batch(outputs: Any, given: Any) -> Tensor:
    inputs, (actions, returns) = given
    return both(outputs, (actions, returns)) + 0 * inputs[:, 5].sum()


def with_parts(outputs: Any, targets: Any) -> Any:
    return {"kept": torch.ones(3), "loss": both(outputs, targets)}


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[..., Any]]] = {
    "tuple": (lambda p, v: (p, v), both),
    "dictionary": (lambda p, v: {"policy": p, "value": v}, both),
    "object": (Outputs, of_object),
    "batch by name": (lambda p, v: (p, v), of_batch),
    "batch": (lambda p, v: (p, v), of_unnamed_batch),
    "a loss of several values": (lambda p, v: (p, v), with_parts),
}


@pytest.mark.parametrize("form", FORMS)
def test_losses_over_several_outputs(form: str) -> None:
    """Both heads get a gradient, and the loss is that of the loss itself."""
    torch.manual_seed(0)
    x, y = batch()
    targets = (x[:, 2] > 0).long(), y
    together, loss = FORMS[form]
    model = Two(together)
    diagnosis = diagnose(model, (x, targets), loss=loss, optimizer=Adam(model.parameters(), 3e-3), trial_steps=10)
    assert not kinds(diagnosis), str(diagnosis)
    tuples = Two(lambda p, v: (p, v))
    tuples.load_state_dict(model.state_dict())
    expected = both(tuples(x), targets)
    reported = next(one.summary for one in diagnosis.checks if one.name == "trial steps")
    assert f"{float(expected.detach()):.3g}" in reported
    reach = next(one.summary for one in diagnosis.checks if one.name == "reach of the gradient")
    assert reach.startswith("6 of 6")
