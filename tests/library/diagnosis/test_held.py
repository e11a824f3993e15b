"""Parameters that the optimizer does not hold, or that the pass reads without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from normless.diagnosis.held import held, held_by, held_elsewhere, named_groups


def small(features: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, outputs))


def test_parameters_of_optimizers() -> None:
    network = small(4, 2)
    first, last = network[0], network[2]
    groups = [{"params": [first.weight]}, {"params": [first.bias, last.bias.requires_grad_(False)], "lr": 0.2}]
    optimizer, other = SGD(groups, 0.1), Adam(last.parameters())
    assert [id(known) for known in held(optimizer)] == [id(first.weight), id(first.bias), id(last.bias)]
    assert held(None) == []
    assert held_by(optimizer, {id(first.weight): "0.weight", id(last.weight): "2.weight"}).keys() == {"0.weight"}
    assert {id(last.weight), id(last.bias)} <= held_elsewhere(optimizer)
    assert id(first.weight) not in held_elsewhere(optimizer)
    named = [(group.number, group.settings["lr"], group.names) for group in named_groups(optimizer, network)]
    assert named == [(0, 0.1, ("0.weight",)), (1, 0.2, ("0.bias",))]
    del other


class Adversarial(nn.Module):
    """A generator and its critic; one step trains one of them."""

    def __init__(self, step: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.critic, self.step = small(4, 8), small(8, 1), step

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        if self.step == "generator":
            return self.critic(self.generator(noise))
        with torch.no_grad():
            made = self.generator(noise)
        return self.critic(torch.cat([real, made]))


@pytest.mark.parametrize("has_other", [True, False])
def test_parts_that_another_optimizer_trains(has_other: bool) -> None:
    """Where no other optimizer holds the critic, it was forgotten."""
    network = Adversarial("generator")
    optimizer = Adam(network.generator.parameters(), 1e-3)
    other = Adam(network.critic.parameters(), 1e-3) if has_other else None
    batch = (torch.randn(64, 4), torch.randn(64, 8)), torch.ones(64, 1)
    found = kinds(diagnose(network, batch, loss=F.binary_cross_entropy_with_logits, optimizer=optimizer))
    assert found == ([] if has_other else ["untrained_parameters"])
    del other


def test_parts_without_gradient_that_the_optimizer_does_not_hold() -> None:
    """In the step of a critic the generator is not to be trained; a classifier that is trained whole, is."""
    targets = torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])
    batch = (torch.randn(64, 4), torch.randn(64, 8)), targets
    for whole, expected in ((False, []), (True, ["no_grad"])):
        network = Adversarial("critic")
        optimizer = Adam((network if whole else network.critic).parameters(), 1e-3)
        found = kinds(diagnose(network, batch, loss=F.binary_cross_entropy_with_logits, optimizer=optimizer))
        assert found == expected


class Reading(nn.Module):
    """A linear layer whose weight is read by a function."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.weight, self.head = read, nn.Parameter(torch.randn(16, 8) / 4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(x, self.read(self.weight))))


@pytest.mark.parametrize(
    ("read", "operation"),
    [
        (lambda weight: weight.data, "data"),
        (lambda weight: 2 * weight.detach(), "detach"),
        (lambda weight: weight, None),
        # The gradient passes the rounding.
        (lambda weight: weight + (weight.round() - weight).detach(), None),
    ],
)
def test_weights_of_which_the_pass_reads_the_values(read: Callable[[Tensor], Tensor], operation: str | None) -> None:
    diagnosis = diagnose(Reading(read), (torch.randn(32, 8), torch.arange(32) % 3))
    assert kinds(diagnosis) == ([] if operation is None else ["detached"]), str(diagnosis)
    if operation is not None:
        (found,) = diagnosis.findings
        assert found.where == ("weight",)
        assert found.evidence == {"parameters": 1, "operation": operation}


class Code(nn.Module):
    """An embedding of a code that layers choose."""

    def __init__(self, choose: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.choose, self.encoder, self.codes, self.head = choose, small(8, 6), nn.Parameter(torch.randn(6, 16)), None
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.choose(self.encoder(x)) @ self.codes)


def hard(logits: Tensor) -> Tensor:
    return F.one_hot(logits.argmax(1), 6).float()


@pytest.mark.parametrize(
    ("choose", "stops"),
    [
        (hard, True),
        (lambda logits: (logits > 0).float(), True),
        (lambda logits: logits.softmax(1), False),
        (lambda logits: hard(logits) + logits.softmax(1) - logits.softmax(1).detach(), False),
    ],
)
def test_choices_that_cut_the_gradient_off(choose: Callable[[Tensor], Tensor], stops: bool) -> None:
    network = Code(choose)
    diagnosis = diagnose(network, (torch.randn(64, 8), torch.arange(64) % 3))
    assert kinds(diagnosis)[:1] == (["detached"] if stops else []), str(diagnosis)
    if stops:
        without = [name for name, _ in network.named_parameters() if name.startswith("encoder")]
        assert diagnosis.findings[0].where == tuple(without)
        assert "no gradient" in diagnosis.findings[0].title


class Unregistered(nn.Module):
    """A head that is created in every pass, kept in a list, or registered."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.how = nn.Linear(8, 16), how
        self._heads = [nn.Linear(16, 3)]
        if how == "registered":
            self.head = self._heads[0]

    def forward(self, x: Tensor) -> Tensor:
        head = nn.Linear(16, 3) if self.how == "created" else self._heads[0]
        return head(F.relu(self.first(x)))


@pytest.mark.parametrize(
    ("how", "cure"), [("created", "in __init__"), ("listed", "nn.ModuleList"), ("registered", None)]
)
def test_layers_that_are_created_in_forward(how: str, cure: str | None) -> None:
    findings = diagnose(Unregistered(how), (torch.randn(32, 8), torch.arange(32) % 3)).findings
    named = [found.cure.words for found in findings if found.kind == "unregistered_modules"]
    assert len(named) == (cure is not None)
    assert all(cure is not None and cure in words for words in named)


class Averaged(nn.Module):
    """A network beside a frozen one in training mode: an average of it, or another one."""

    def __init__(self, is_copy: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        other = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))
        self.target = (deepcopy(self.online) if is_copy else other).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.online(x), self.target(0.5 * x).detach()


@pytest.mark.parametrize("is_copy", [True, False])
def test_statistics_of_a_copy_follow_its_weights(is_copy: bool) -> None:
    x = torch.randn(64, 8)
    network = Averaged(is_copy)
    optimizer: Optimizer = Adam(network.online.parameters(), 1e-3)
    diagnosis = diagnose(network, (x, x), loss=lambda made, _: F.mse_loss(*made), optimizer=optimizer)
    assert kinds(diagnosis) == ([] if is_copy else ["moving_frozen_norms"]), str(diagnosis)
