"""Rates that are offered, and findings that a fitted batch outranks."""

from __future__ import annotations

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from normless.diagnosis.cures import with_tried_cures
from normless.diagnosis.examination import Examination
from normless.diagnosis.findings import OF_SIGNAL, Cure, Finding


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
