"""What a network returns and what a loss takes, in every form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

import normless as nl
from normless.errors import InputsError


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


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[..., Any]]] = {
    "tuple": (lambda p, v: (p, v), both),
    "dictionary": (lambda p, v: {"policy": p, "value": v}, both),
    "object": (Outputs, of_object),
    "batch by name": (lambda p, v: (p, v), of_batch),
    "batch": (lambda p, v: (p, v), of_unnamed_batch),
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


RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "None": lambda _: None,
    "a tuple of Tensor, dict": lambda value: (value, {"accuracy": 0.1}),
    "a list of Tensor, Tensor": lambda value: [value, value],
    "a dict of loss": lambda value: {"loss": value},
    r"a tensor of shape \(2,\)": lambda value: value.repeat(2),
    "a complex tensor": lambda value: value * 1j,
    "a float": lambda value: value.item(),
}


@pytest.mark.parametrize("came", RETURNED)
def test_what_a_loss_returned_is_said(came: str) -> None:
    x, y = torch.randn(8, 6), torch.randint(3, (8,))

    def loss(outputs: Tensor, targets: Tensor) -> Any:
        return RETURNED[came](F.cross_entropy(outputs, targets))

    diagnosis = diagnose(nn.Linear(6, 3), (x, y), loss=loss)
    assert kinds(diagnosis) == ["loss_failed"]
    assert re.search(f"The loss returned {came}", str(diagnosis))
    with pytest.raises(InputsError, match=f"one number in a tensor, got {came}"):
        nl.probe(nn.Linear(6, 3), (x, y), loss=loss)
    with pytest.raises(InputsError, match="without a gradient"):
        nl.probe(nn.Linear(6, 3), (x, y), loss=lambda outputs, targets: F.cross_entropy(outputs, targets).detach())


class OfTargets(nn.Module):
    """As nanoGPT: the loss comes with the outputs if the targets are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, index: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.embedding(index))
        if targets is None:
            return logits[:, -1:], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_a_network_that_computes_its_loss_gets_its_targets_as_an_input() -> None:
    torch.manual_seed(0)
    model, x = OfTargets(), torch.randint(20, (8, 12))
    y = (7 * x + 3) % 20

    def loss(out: Any, batch: Any) -> Any:
        return out[1]

    def found(batch: Any) -> list[str]:
        return kinds(diagnose(model, batch, loss=loss, optimizer=Adam(model.parameters(), 1e-2)))

    assert found((x, y)) == ["loss_failed"]
    assert not found(((x, y), y))
    assert not found({"index": x, "targets": y})


def test_a_network_that_returns_its_loss_alone() -> None:
    class Alone(nn.Linear):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(super().forward(x), y)

    model, (x, y) = Alone(6, 3), (torch.randn(8, 6), torch.arange(8) % 3)
    assert not kinds(diagnose(model, ((x, y), y), loss=lambda out, batch: out))
    assert not kinds(diagnose(model, ((x, y),)))
    assert "pass loss=lambda out, batch: out" in str(diagnose(model, ((x, y), y)))
