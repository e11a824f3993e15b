"""Steps in the wrong direction, rates of zero, and gradients of exactly zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

Loss = Callable[[Tensor, Tensor], Tensor]


def small(outputs: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50, 32), nn.Tanh(), nn.Linear(32, outputs))


def likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    return -F.cross_entropy(outputs, targets)


def policy(outputs: Tensor, targets: Tensor) -> Tensor:
    advantages = torch.linspace(-1, 1, len(targets))
    return (F.cross_entropy(outputs, targets, reduction="none") * advantages).mean()


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    mean, log_variance = outputs.chunk(2, 1)
    return (0.5 * log_variance + 0.5 * (mean - 0.1 * targets[:, None]) ** 2 / log_variance.exp()).mean() - 5


def wasserstein(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.mean(1) * (2.0 * (targets % 2) - 1)).mean()


@pytest.mark.parametrize(
    ("loss", "maximize", "expected"),
    [
        (F.cross_entropy, True, ["ascent"]),
        (F.cross_entropy, False, []),
        (likelihood, False, ["wrong_sign"]),
        (likelihood, True, []),
        (lambda z, y: F.mse_loss(z[:, 0], y.float()), True, ["ascent"]),
        (lambda z, y: -1e-4 * F.mse_loss(z[:, 0], y.float(), reduction="sum"), False, ["wrong_sign"]),
        (lambda z, y: F.mse_loss(z[:, 0], 1e4 * y.float(), reduction="sum"), False, []),
        (lambda z, y: -F.cosine_similarity(z, F.one_hot(y, 10).float()).mean(), False, []),
        (policy, False, []),
        (policy, True, []),
        (gaussian, False, []),
        (wasserstein, False, []),
        (lambda z, y: -F.softplus(z).mean(), False, []),
    ],
)
def test_the_direction_of_the_steps(loss: Loss, maximize: bool, expected: list[str]) -> None:
    network = small()
    optimizer = SGD(network.parameters(), 0.1, maximize=maximize)
    diagnosis = diagnose(network, vectors(), loss=loss, optimizer=optimizer)
    assert kinds(diagnosis) == expected, str(diagnosis)


@pytest.mark.parametrize(
    ("loss", "maximize", "expected"),
    [
        (lambda z, y: -F.mse_loss(z.sigmoid(), F.one_hot(y, 10).float()), False, ["wrong_sign"]),
        (lambda z, y: F.mse_loss(z.sigmoid(), F.one_hot(y, 10).float()), False, []),
        (lambda z, y: F.mse_loss(z.sigmoid(), F.one_hot(y, 10).float()), True, ["ascent"]),
        (lambda z, y: z.softmax(1).gather(1, y[:, None]).mean(), False, ["wrong_sign"]),
        (lambda z, y: z.softmax(1).gather(1, y[:, None]).mean(), True, []),
        (lambda z, y: F.cosine_similarity(z[:, :5], z[:, 5:]).mean() + 0 * y.sum(), False, ["wrong_sign"]),
        (lambda z, y: 1 - F.cosine_similarity(z[:, :5], z[:, 5:]).mean() + 0 * y.sum(), False, []),
        (lambda z, y: (F.cosine_similarity(z[:, :5], z[:, 5:]) * (-1.0) ** y).mean(), False, []),
    ],
)
def test_the_direction_of_bounded_losses(loss: Loss, maximize: bool, expected: list[str]) -> None:
    network = small()
    optimizer = SGD(network.parameters(), 0.1, maximize=maximize)
    kind = {"ascent": "wrong_sign"}
    found = kinds(diagnose(network, vectors(), loss=loss, optimizer=optimizer))
    assert [one for one in found if one in ("ascent", "wrong_sign")] == [kind.get(one, one) for one in expected]


class WithLoss(nn.Module):
    """A network that returns its loss."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.body, self.sign = small(), sign

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(x)
        return {"loss": self.sign * F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize(("sign", "expected"), [(1.0, []), (-1.0, ["wrong_sign"])])
def test_the_direction_of_a_loss_that_the_network_computes(sign: float, expected: list[str]) -> None:
    x, labels = vectors()
    assert kinds(diagnose(WithLoss(sign), {"x": x, "labels": labels})) == expected


def test_a_loss_through_a_critic_may_fall_without_a_bound() -> None:
    critic = nn.Linear(10, 1)
    diagnosis = diagnose(small(), vectors(), loss=lambda z, y: -F.softplus(critic(z)).mean())
    assert not kinds(diagnosis)


def test_a_learning_rate_of_zero() -> None:
    network, batch = small(), vectors()
    diagnosis = diagnose(network, batch, optimizer=SGD(network.parameters(), 0.0), trial_steps=5)
    assert kinds(diagnosis) == ["zero_rate"]
    assert "all groups" in diagnosis.verdict
    groups: list[dict[str, Any]] = [
        {"params": network[0].parameters(), "lr": 0.0},
        {"params": network[2].parameters()},
    ]
    found = diagnose(network, batch, optimizer=Adam(groups, 1e-2)).findings
    assert [(one.kind, one.where[0]) for one in found] == [("zero_rate", "0.weight")]
    # A rate of zero for parameters that should not train.
    frozen = network[0].requires_grad_(False)
    groups = [{"params": frozen.parameters(), "lr": 0.0}, {"params": network[2].parameters()}]
    assert not kinds(diagnose(network, batch, optimizer=Adam(groups, 1e-2)))


def test_a_warm_up_that_starts_at_zero() -> None:
    network = small()
    optimizer = Adam(network.parameters(), 1e-2)
    LambdaLR(optimizer, lambda step: step / 10)
    diagnosis = diagnose(network, vectors(), optimizer=optimizer, trial_steps=10)
    assert diagnosis.healthy, str(diagnosis)
    assert [advice.kind for advice in diagnosis.advice] == ["zero_rate"]


class Stopped(nn.Module):
    """Two layers with a function between them."""

    def __init__(self, function: Callable[[Tensor], Tensor], last: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(50, 32), nn.Linear(32, 10)
        self.function, self.last = function, last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(self.function(self.encoder(x))))


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (torch.round, "round"),
        (torch.sign, "sign"),
        (lambda x: x.clamp(5, 6) + x.detach(), "clamp"),
        (lambda x: (10 * x).floor() / 10, "floor"),
        (lambda x: F.threshold(x, 50.0, 1.0) + x.detach(), "threshold"),
    ],
)
def test_an_operation_that_passes_no_gradient(function: Callable[[Tensor], Tensor], operation: str) -> None:
    found = diagnose(Stopped(function), vectors()).findings[0]
    assert found.kind == "zero_gradient"
    assert found.evidence["operation"] == operation
    assert found.where == ("encoder",)
    assert "test_direction.py" in found.title
    assert "2 of 4" in found.title


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + (torch.round(x) - x).detach(),
        lambda x: x.clamp(-0.1, 0.1),
        lambda x: x * torch.sign(x),
        lambda x: torch.where(x > 0.5, torch.sign(x), x),
    ],
)
def test_operations_that_pass_some_gradient(function: Callable[[Tensor], Tensor]) -> None:
    assert not kinds(diagnose(Stopped(function), vectors()))


def test_a_clamp_stops_all_gradients_and_a_head_of_zeros_does_not() -> None:
    clamped = diagnose(Stopped(torch.tanh, lambda x: x.clamp(min=5.0)), vectors()).findings[0]
    assert (clamped.kind, clamped.evidence["operation"]) == ("zero_gradient", "clamp")
    network = Stopped(torch.tanh)
    nn.init.zeros_(network.head.weight)
    assert not kinds(diagnose(network, vectors()))
