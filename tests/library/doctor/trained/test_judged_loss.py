"""Where the loss of a trained network stands, against entropies and variances of the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trained_health import kinds, quick

import normless as nl

DATA = torch.Generator().manual_seed(5)
X = torch.randn(200, 8, generator=DATA)
CLASSES = (X[:, 0] > 0.4).long() + (X[:, 1] > 0).long() * (X[:, 0] > 0.4).long()
VALUES = 3 * X[:, :2] + 5


def fit(loss: Callable[[Tensor, Any], Tensor], targets: Tensor, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, outputs))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(120):
        optimizer.zero_grad()
        loss(net(X), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net


def entropy(labels: Tensor) -> float:
    share = labels.bincount().double() / len(labels)
    return float(-(share * share.log()).sum())


def ignoring(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, ignore_index=-100)


IGNORED = CLASSES.masked_fill(torch.arange(200) % 4 == 0, -100)
JUDGED: dict[str, tuple[Callable[[Tensor, Any], Tensor], Tensor, int, float]] = {
    "classes": (F.cross_entropy, CLASSES, 3, entropy(CLASSES)),
    "ignored positions": (ignoring, IGNORED, 3, entropy(IGNORED[IGNORED >= 0])),
    "values": (F.mse_loss, VALUES, 2, float(VALUES.var(0, correction=0).mean())),
    "the nats of one output": (
        lambda logits, y: F.binary_cross_entropy_with_logits(logits[:, 0], (y > 0).float()),
        CLASSES,
        1,
        entropy((CLASSES > 0).long()),
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_loss_is_judged_by_the_best_constant_outputs(name: str) -> None:
    loss, targets, outputs, constant = JUDGED[name]
    net = fit(loss, targets, outputs)
    halves = [(X[:120], targets[:120]), (X[120:], targets[120:])]
    good = quick(net, halves, loss=loss)
    assert not good.findings
    assert "of the best constant outputs" in str(good)
    # Of the inputs only the order is another.
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    bad = quick(net, [(X[order], targets)], loss=loss)
    (found,) = bad.findings
    assert found.kind == "no_better_than_guessing"
    assert found.evidence["constant"] == pytest.approx(constant, rel=2e-3)
    with torch.no_grad():
        assert found.evidence["loss"] == pytest.approx(float(loss(net(X[order]), targets)), rel=1e-5)


def test_few_targets_and_losses_without_a_bar_are_not_judged_too_strictly() -> None:
    torch.manual_seed(0)
    net = nn.Linear(8, 100)
    with torch.no_grad():
        net.weight.mul_(3)
    # Outputs that are fitted to 20 labels of 100 classes would have log 20; the network is better than log 100 alone.
    labels = (net(X[:20]) + 4 * torch.randn(20, 100, generator=DATA)).argmax(1)
    report = quick(net, [(X[:20], labels)])
    assert 2.5 < F.cross_entropy(net(X[:20]), labels).item() < 4.6
    assert not report.findings
    # No outputs are better than constant ones for this loss.
    assert not kinds(quick(net, [(X, X)], loss=lambda outputs, _: outputs.square().mean()))
    # Without targets there is no loss.
    assert not kinds(nl.diagnose_trained(net, [X]))


def test_a_loss_that_falls_without_a_bound_has_no_bar() -> None:
    net, advantages = nn.Linear(8, 4), torch.randn(200, generator=DATA)
    actions = torch.arange(200) % 4

    def policy(logits: Tensor, taken: Tensor) -> Tensor:
        return -(advantages * logits.log_softmax(1)[torch.arange(200), taken]).mean()

    report = quick(net, [(X, actions)], loss=policy)
    assert "no_better_than_guessing" not in kinds(report)
    assert "what guessing has is not known" in report.full()


@pytest.mark.parametrize("axes", [1, 2])
def test_few_real_targets_have_no_bar(axes: int) -> None:
    class Values(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.line(x)
            return y if axes == 2 else y[:, 0]

    torch.manual_seed(0)
    net, noise = Values(), torch.randn(200, generator=DATA)
    targets = noise[:, None] if axes == 2 else noise
    assert not kinds(quick(net, [(X[:64], targets[:64])], loss=F.mse_loss))
    (found,) = quick(net, [(X, targets)], loss=F.mse_loss).findings
    assert found.kind == "no_better_than_guessing"
    assert found.evidence["constant"] == pytest.approx(float(noise.var(correction=0)), rel=1e-3)
