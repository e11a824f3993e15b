"""Outputs that are bounded by the operations that make them, and losses that need values outside the bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F

BOUNDED, SQUASHED = ["cosine_logits"], ["activation_after_classifier"]
Made = Callable[[Tensor], Tensor]


class Cosines(nn.Module):
    """Cosines of features and prototypes, computed in several ways."""

    def __init__(self, way: str, scale: float, learned: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))
        self.prototypes, self.way = nn.Parameter(torch.randn(6, 16)), way
        self.scale: Any = nn.Parameter(torch.tensor(scale)) if learned else scale

    def forward(self, x: Tensor) -> Tensor:
        h, w = self.body(x), self.prototypes
        if self.way == "cosine_similarity":
            return self.scale * F.cosine_similarity(h[:, None], w[None], dim=-1)
        if self.way == "einsum":
            return self.scale * torch.einsum("nd,kd->nk", F.normalize(h, dim=1), F.normalize(w, dim=1))
        if self.way == "products":
            return self.scale * (F.normalize(h, dim=1)[:, None] * F.normalize(w, dim=1)[None]).sum(-1)
        if self.way == "by hand":
            return self.scale * (h / h.norm(dim=1, keepdim=True)) @ (w / w.norm(dim=1, keepdim=True)).T
        return self.scale * F.linear(F.normalize(h, dim=1), F.normalize(w, dim=1))


class Ending(nn.Module):
    """A network that ends in a function."""

    def __init__(self, function: Made) -> None:
        super().__init__()
        self.body, self.function = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 6)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x))


@pytest.mark.parametrize("way", ["linear", "by hand", "cosine_similarity", "einsum", "products"])
def test_cosines_need_a_scale(way: str) -> None:
    torch.manual_seed(0)
    batch = torch.randn(48, 12), torch.arange(48) % 6
    found = diagnose(Cosines(way, 1.0), batch).findings
    assert [finding.kind for finding in found] == BOUNDED
    # log(1 + 5 exp(-2))
    assert abs(float(found[0].evidence["lowest_loss"]) - 0.5167) < 1e-3
    assert not kinds(diagnose(Cosines(way, 16.0), batch))
    assert not kinds(diagnose(Cosines(way, 1.0, learned=True), batch))
    assert not kinds(diagnose(Cosines(way, 1.0), batch, loss=lambda o, t: F.cross_entropy(20 * o, t)))


LOGITS: dict[str, tuple[Made, bool]] = {
    "sigmoid by hand": (lambda z: 1 / (1 + torch.exp(-z)), True),
    "softmax by hand": (lambda z: (e := z.exp()) / e.sum(1, keepdim=True), True),
    "softmax of two exponentials": (lambda z: z.exp() / z.exp().sum(1, keepdim=True), True),
    "narrow tanh": (lambda z: 1.5 * torch.tanh(z), True),
    "soft cap": (lambda z: 10 * torch.tanh(z / 10), False),
    "narrow clamp": (lambda z: z.clamp(-1, 1), True),
    "wide clamp": (lambda z: z.clamp(-20, 20), False),
}


@pytest.mark.parametrize("name", LOGITS)
def test_bounds_of_logits(name: str) -> None:
    torch.manual_seed(0)
    function, wrong = LOGITS[name]
    assert kinds(diagnose(Ending(function), (torch.randn(48, 12), torch.arange(48) % 6))) == SQUASHED * wrong


VALUES: dict[str, tuple[Made, Made, bool]] = {
    "ReLU, negative targets": (F.relu, lambda t: t, True),
    "square, negative targets": (lambda z: z**2, lambda t: t, True),
    "ELU, negative targets": (F.elu, lambda t: -5 - t.abs(), True),
    "sigmoid, large targets": (torch.sigmoid, lambda t: 50 + t, True),
    "ReLU, positive targets": (F.relu, torch.abs, False),
    "sigmoid, targets in its range": (torch.sigmoid, torch.sigmoid, False),
    "tanh, targets hardly outside": (torch.tanh, lambda t: t.clamp(-1.05, 1.05), False),
}


@pytest.mark.parametrize("name", VALUES)
def test_targets_out_of_reach(name: str) -> None:
    torch.manual_seed(0)
    function, target, wrong = VALUES[name]
    batch = torch.randn(48, 12), target(torch.randn(48, 6))
    assert kinds(diagnose(Ending(function), batch, loss=F.mse_loss)) == SQUASHED * wrong


LOSSES: dict[str, tuple[Made, Callable[..., Tensor]]] = {
    "log-probabilities": (lambda z: torch.log(torch.softmax(z, 1) + 1e-8), F.nll_loss),
    "rates": (torch.exp, lambda o, t: F.poisson_nll_loss(o, F.one_hot(t, 6).float(), log_input=False)),
    "a reward": (lambda z: z.softmax(1), lambda o, t: -(o.gather(1, t[:, None]) * (t - 2)[:, None]).mean()),
    "a policy, and another term": (
        lambda z: z.softmax(1),
        lambda o, t: 3 - (o.gather(1, t[:, None]).log() * (t[:, None] - 1)).mean(),
    ),
    "smoothed labels": (lambda z: z, nn.CrossEntropyLoss(label_smoothing=0.1)),
    "margins of cosines": (lambda z: F.normalize(z, dim=1), nn.MultiMarginLoss(margin=0.3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_bounds_that_the_loss_means(name: str) -> None:
    torch.manual_seed(0)
    function, loss = LOSSES[name]
    assert not kinds(diagnose(Ending(function), (torch.randn(48, 12), torch.arange(48) % 6), loss=loss))
