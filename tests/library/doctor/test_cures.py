"""Cures that were tried, and the evidence of trials."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds, vectors
from torch import Tensor, nn
from torch.nn import functional as F

from normless.doctor import Treatment
from normless.doctor._treatment import treat
from normless.doctor.facts._guessing import lowest_of_constants


def assert_cured(*args: Any, **options: Any) -> Treatment:
    """Return what `treat` returns, with a diagnosis after it that has no findings."""
    treatment = treat(*args, **options)
    assert treatment is not None
    assert treatment.after.healthy, str(treatment.after)
    return treatment


class PostNorm(nn.Module):
    """x ← norm(x + W₂ sign(W₁ x)), many times: branches as large as the skip path, which pass no gradient."""

    def __init__(self, depth: int, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.ModuleList(nn.Linear(width, width).requires_grad_(False) for _ in range(depth))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)
        for layer in [*self.first, *self.second]:
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            x = norm(x + second(torch.sign(first(x))))
        return self.head(x)


def test_a_deep_post_norm_network_loses_its_gradient_and_skipinit_cures_it() -> None:
    """A norm after a sum of two equal variances divides the skip path's gradient by √2, 40 times."""
    network, batch = PostNorm(40), vectors(features=64)
    before = diagnose(network, batch)
    assert kinds(before) == ["vanishing_gradient"]
    assert before.findings[0].evidence["ratio_per_block"] == pytest.approx(2**0.5, rel=0.1)
    schemes = before.findings[0].cure.schemes
    assert schemes[0] == "skipinit"
    assert "peri_norm" not in schemes
    assert_cured(network, batch, before, scheme="skipinit")
    assert diagnose(PostNorm(4), batch).healthy


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
