"""Batches that cannot be fitted, and rates that are offered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam

from normless.diagnosis.cures import with_tried_cures
from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import OF_SIGNAL, Cure, Finding

Case = tuple[nn.Module, tuple[Tensor, Tensor], dict[str, object]]


def contradicting() -> Case:
    """Every example is there with both labels, up to rounding."""
    x = torch.randn(16, 6).repeat(2, 1) + 1e-6 * torch.randn(32, 6)
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    return network, (x, torch.arange(32) // 16), {"optimizer": Adam(network.parameters(), 1e-2)}


def ascending() -> Case:
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


def rounding() -> Case:
    network = nn.Sequential(nn.Linear(6, 2), Rounded())
    options: dict[str, object] = {"optimizer": SGD(network.parameters(), 0.9), "loss": F.mse_loss}
    return network, (torch.randn(32, 6), torch.randn(32, 2)), options


def slow() -> Case:
    """A small rate, at which twenty steps hardly lower the loss."""
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    return network, (torch.randn(32, 6), torch.arange(32) % 2), {"optimizer": Adam(network.parameters(), 1e-3)}


def weak() -> Case:
    """A linear model of few parameters explains two percent of the variance."""
    x = torch.randn(256, 5)
    options: dict[str, object] = {"loss": F.mse_loss}
    network = nn.Linear(5, 1)
    return (
        network,
        (x, 0.15 * x[:, :1] + torch.randn(256, 1)),
        options | {"optimizer": Adam(network.parameters(), 1e-2)},
    )


def surrogate() -> Case:
    """The value of a policy's surrogate is the same for all outputs."""

    def loss(outputs: Tensor, actions: Tensor) -> Tensor:
        logarithms = F.log_softmax(outputs, 1).gather(1, actions[:, None])[:, 0]
        return -((logarithms - logarithms.detach()).exp() * torch.linspace(-1, 1, len(actions))).mean()

    network = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 4))
    batch = torch.randn(256, 5), torch.arange(256) % 4
    return network, batch, {"optimizer": Adam(network.parameters(), 1e-3), "loss": loss}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (contradicting, "prevented_by_data"),
        (slow, ""),
        (weak, ""),
        (surrogate, ""),
        (ascending, "ascent"),
        (rounding, "zero_gradient"),
    ],
)
def test_whether_any_rate_fits_a_batch(make: Callable[[], Case], kind: str) -> None:
    torch.manual_seed(0)
    network, batch, options = make()
    diagnosis = diagnose(network, batch, trial_steps=10, **options)
    assert kinds(diagnosis)[:1] == [kind] * bool(kind), str(diagnosis)
    if not kind:
        return
    found = diagnosis.findings[-1]
    if kind == "prevented_by_data":
        assert found.kind == "not_fitted"
        assert float(found.evidence["best"]) > 0.95 * float(found.evidence["loss_of_guessing"])
        assert "not due to the rate, the data" in found.title


def test_targets_that_constant_outputs_fit() -> None:
    """A generator's targets are all alike, and the best constant outputs are the best of all."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))

    def loss(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.softplus(-critic(outputs)).mean()

    batch = torch.randn(32, 6), torch.arange(32) % 2
    for rate in (1e-2, 1e-3):
        diagnosis = diagnose(network, batch, loss=loss, optimizer=Adam(network.parameters(), rate), trial_steps=10)
        assert diagnosis.healthy, str(diagnosis)


def test_a_value_that_is_not_finite_after_some_steps() -> None:
    """The loss falls until one score is 0: a smaller rate only delays it."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    batch = torch.randn(32, 6), torch.arange(32) % 3

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        scores = F.relu(1 + outputs)
        shares = scores / scores.sum(1, keepdim=True)
        return -(F.one_hot(targets, 3) * shares.log()).sum(1).mean()

    def safe(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.nll_loss((F.softplus(outputs) / F.softplus(outputs).sum(1, keepdim=True)).log(), targets)

    optimizer = SGD(network.parameters(), 0.5)
    found = diagnose(network, batch, loss=loss, optimizer=optimizer, trial_steps=40).findings[0]
    assert (found.kind, found.severity) == ("not_finite", 0.95)
    assert "steps at rate 0.5" in found.title
    assert diagnose(network, batch, loss=safe, optimizer=optimizer, trial_steps=40).healthy


@pytest.mark.parametrize("rate", [300.0, 1e-7, 1e-13])
def test_the_rate_that_is_offered_is_the_best_of_those_tried(rate: float) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
    batch = torch.randn(32, 6), torch.arange(32) % 2
    (found,) = diagnose(network, batch, optimizer=SGD(network.parameters(), rate), trial_steps=20).findings
    assert found.kind == ("rate_too_large" if rate > 1 else "rate_too_small")
    best = float(found.evidence["loss_at_working_rate"])
    for offered in (1.0, 0.1, 0.01):
        again = diagnose(network, batch, optimizer=SGD(network.parameters(), offered), trial_steps=20)
        summary = next(check.summary for check in again.checks if check.name == "trial steps")
        assert best < 1.1 * float(summary.split()[-1])


@pytest.mark.parametrize("kind", sorted(OF_SIGNAL))
def test_a_fitted_batch_outranks_every_finding_in_the_signal(kind: str) -> None:
    """It becomes advice, no cure is searched for it, and other findings stay."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    batch = torch.randn(32, 6), torch.arange(32) % 2
    cure = Cure("repair it", ("skipinit", "fixup"))
    findings = [Finding(name, 0.9, "", {}, (), "", cure) for name in (kind, "small_batch")]
    for optimizer in (Adam(network.parameters(), 3e-2), None):
        exam = Examination(network, *batch, F.cross_entropy, optimizer)
        of_signal, other = with_tried_cures(exam, findings, 20)
        assert of_signal.advice
        assert not other.advice
        assert not of_signal.cure.losses
    noise = torch.randn(16, 6).repeat(2, 1), torch.arange(32) // 16
    exam = Examination(network, *noise, F.cross_entropy, None)
    assert not with_tried_cures(exam, findings, 20)[0].advice


def test_steps_with_a_closure() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))
    batch = torch.randn(32, 6), torch.arange(32) % 2
    diagnosis = diagnose(network, batch, optimizer=LBFGS(network.parameters(), 0.5), trial_steps=5)
    assert diagnosis.healthy, str(diagnosis)


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
        F.cross_entropy(network(x), batch[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for other in (SGD(network.parameters(), 1e-4), Adam(network.parameters(), 1e-2)):
        assert not kinds(diagnose(network, batch, optimizer=other, trial_steps=10))
