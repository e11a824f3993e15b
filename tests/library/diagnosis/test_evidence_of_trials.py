"""The trial as evidence in both directions, and cures that name what fits and what won."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from diagnosed import diagnose, images, kinds, vectors
from torch import Tensor, nn
from torch.optim import SGD, Adam

import normless as nl
from normless.diagnosis.cures import FREEZE, _ranked
from normless.diagnosis.examination import lowest_of_constants
from normless.diagnosis.findings import Cure
from normless.diagnosis.trial import Trial
from normless.models import wide_resnet

Patient = tuple[nn.Module, tuple[Tensor, Tensor], dict[str, object]]


def deep(scale: float) -> nn.Sequential:
    """ReLU layers without norms, of He's variance times a factor."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(14):
        layers += [nn.Linear(50, 50), nn.ReLU()]
        nn.init.normal_(layers[-2].weight, std=(2 * scale / 50) ** 0.5)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers, nn.Linear(50, 10))


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_a_fitted_batch_makes_findings_in_the_signal_advice(has_optimizer: bool) -> None:
    torch.manual_seed(0)
    network, batch = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 10)), vectors()
    nn.init.constant_(network[0].bias[:370], -100)
    assert kinds(diagnose(network, batch)) == ["dead_units"]
    optimizer = Adam(network.parameters(), 1e-2) if has_optimizer else None
    diagnosis = diagnose(network, batch, optimizer=optimizer, trial_steps=60)
    assert diagnosis.healthy, str(diagnosis)
    assert diagnosis.advice[0].kind == "dead_units"


def test_a_batch_that_is_not_fitted_keeps_them() -> None:
    network = deep(0.2)
    diagnosis = diagnose(network, vectors(), optimizer=Adam(network.parameters(), 1e-3), trial_steps=20)
    assert kinds(diagnosis)[0] == "vanishing_signal"


def test_large_inputs_that_train_all_the_same() -> None:
    torch.manual_seed(0)
    x = 30 * torch.randn(64, 6)
    network = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
    batch = x, (x @ torch.randn(6, 3)).argmax(1)
    diagnosis = diagnose(network, batch, optimizer=Adam(network.parameters(), 1e-2), trial_steps=60)
    assert diagnosis.healthy, str(diagnosis)
    assert "unscaled_inputs" in [one.kind for one in diagnosis.advice]


def contradicting() -> Patient:
    """Every example is there with both labels."""
    x = torch.randn(16, 6).repeat(2, 1)
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    return network, (x, torch.arange(32) // 16), {"optimizer": Adam(network.parameters(), 1e-2)}


def ascending() -> Patient:
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = SGD(network.parameters(), 0.1, maximize=True)
    return network, (torch.randn(32, 6), torch.arange(32) % 2), {"optimizer": optimizer}


class Rounded(nn.Module):
    """Rounding, whose gradient is zero, and a bias that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return 0.1 * torch.round(10 * torch.sigmoid(x)) + self.bias


def rounding() -> Patient:
    network = nn.Sequential(nn.Linear(6, 2), Rounded())
    options: dict[str, object] = {"optimizer": SGD(network.parameters(), 0.9), "loss": F.mse_loss}
    return network, (torch.randn(32, 6), torch.randn(32, 2)), options


@pytest.mark.parametrize("make", [contradicting, ascending, rounding])
def test_a_batch_that_no_rate_fits(make: Callable[[], Patient]) -> None:
    torch.manual_seed(0)
    network, batch, options = make()
    diagnosis = diagnose(network, batch, trial_steps=10, **options)
    found = [one for one in diagnosis.findings if one.kind == "not_fitted"]
    assert len(found) == 1, str(diagnosis)
    assert float(found[0].evidence["best"]) > 0.95 * float(found[0].evidence["loss_of_guessing"])


@pytest.mark.parametrize("scale", [1.0, 70.0, 1e4])
def test_no_limit_is_absolute(scale: float) -> None:
    """A loss of 4,800, or of 10⁸, is that of large targets."""
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    y = scale * x[:, :1] + scale
    network = nn.Linear(6, 1)
    for reduction in ("mean", "sum"):
        loss = nn.MSELoss(reduction=reduction)
        rate = 0.05 / (64 if reduction == "sum" else 1)
        diagnosis = diagnose(network, (x, y), loss=loss, optimizer=SGD(network.parameters(), rate), trial_steps=20)
        assert not kinds(diagnosis), str(diagnosis)


def test_a_trained_network_has_little_left_to_learn() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 6)
    batch = x, (x[:, 0] > 0).long()
    network = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = Adam(network.parameters(), 1e-2)
    for _ in range(500):
        optimizer.zero_grad()
        F.cross_entropy(network(x), batch[1]).backward()
        optimizer.step()
    for other in (SGD(network.parameters(), 1e-4), Adam(network.parameters(), 1e-2)):
        assert not kinds(diagnose(network, batch, optimizer=other, trial_steps=10))


def test_the_loss_of_the_best_constant_outputs() -> None:
    """The entropy of the labels, the variance of numbers, both for outputs that are far off, as logits or not."""
    labels = torch.tensor([0] * 24 + [1] * 8)
    entropy = float(torch.distributions.Categorical(torch.tensor([0.75, 0.25])).entropy())
    numbers = torch.arange(32.0)[:, None]
    rates = (numbers > 23).float()
    for outputs, targets, loss, expected in (
        (1e4 * torch.randn(32, 2), labels, lambda z: F.cross_entropy(z, labels), entropy),
        (100 * torch.randn(32, 1), numbers, lambda z: F.mse_loss(z, numbers), float(numbers.var(correction=0))),
        (torch.rand(32, 1), rates, lambda z: F.binary_cross_entropy(z, rates), entropy),
        (torch.randn(4, 2, 8), labels.view(4, 8), lambda z: F.cross_entropy(z, labels.view(4, 8)), entropy),
        (torch.randn(4, 8, 2), labels.view(4, 8), lambda z: F.cross_entropy(z.flatten(0, 1), labels), entropy),
    ):
        assert lowest_of_constants(loss, outputs, targets) == pytest.approx(expected, rel=1e-2)


def test_the_cure_names_what_won() -> None:
    cure = Cure("use larger batches", ("group_norm", FREEZE, "skipinit"))
    trials = {"group_norm": Trial(0.1, (2.0, 1.5, 1.0, 1.0)), FREEZE: Trial(0.1, (2.0, 0.5, 0.1, 0.1))}
    ranked = _ranked(cure, trials)
    assert "nl.freeze(model)" in ranked.words
    assert "group_norm" not in ranked.words
    assert ranked.schemes == ("group_norm",)
    assert "none of group_norm" in _ranked(cure, {}).words


def test_no_scheme_is_named_that_is_refused() -> None:
    """A network without a residual map, one that carries a scheme, and one that fits."""

    class Unmapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            pooled = self.norm(self.conv(x)).relu().mean((2, 3))
            return self.head(pooled if float(pooled.sum()) > -1e9 else -pooled)

    torch.manual_seed(0)
    for network, names in ((Unmapped(), False), (wide_resnet(10, 1), True)):
        (found,) = diagnose(network, images(2)).findings
        assert bool(found.cure.schemes) is names
        assert ("nl.convert(model" in found.cure.words) is names
        for scheme in found.cure.schemes:
            nl.convert(network, scheme, images(2)[0])
    bare = nl.convert(nn.Sequential(nn.Flatten(), *[wide_resnet(10, 1).classifier]), "none", torch.randn(2, 64))
    assert "nl.convert(model" not in str(diagnose(bare, (torch.randn(8, 64), torch.arange(8))))


@pytest.mark.parametrize("scheme", ["skipinit", "rezero", "fixup"])
def test_branches_that_start_at_zero_are_not_linear(scheme: str) -> None:
    """Without its branches a network of linear skip paths is linear; they open with the first step."""
    torch.manual_seed(0)
    network = nl.convert(Linear(), scheme, torch.randn(4, 50))
    assert not kinds(diagnose(network, vectors())), str(diagnose(network, vectors()))


class Linear(nn.Module):
    """Sums of branches, and nothing between them."""

    def __init__(self) -> None:
        super().__init__()
        parts = ((nn.BatchNorm1d(50), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50)) for _ in range(3))
        self.branches = nn.ModuleList(nn.Sequential(*part) for part in parts)
        self.head = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        for branch in self.branches:
            x = x + branch(x)
        return self.head(x)
