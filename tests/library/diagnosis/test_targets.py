"""Targets that contradict each other or do not belong to the inputs, and terms of a loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from normless.diagnosis import Diagnosis


def blobs(examples: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(examples) % classes
    centers = 2 * torch.randn(classes, 10, generator=generator)
    return centers[y] + 0.6 * torch.randn(examples, 10, generator=generator), y


def tried(x: Tensor, y: Tensor, outputs: int, loss: Callable[..., Tensor] = F.cross_entropy) -> Diagnosis:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, outputs))
    return diagnose(model, (x, y), loss=loss, optimizer=Adam(model.parameters(), 1e-2), trial_steps=20)


def test_labels_in_another_order() -> None:
    x, y = blobs(600, 5)
    found = tried(x, y[torch.randperm(600, generator=torch.Generator().manual_seed(1))], 5).findings
    assert [one.kind for one in found] == ["unrelated_labels"]
    assert abs(float(found[0].evidence["agreement"]) - 0.2) < 0.05
    assert not kinds(tried(x, y, 5))
    # Labels that depend on the signs of two columns: no linear probe predicts them, neighbours do.
    x = torch.randn(600, 2, generator=torch.Generator().manual_seed(2))
    assert "unrelated_labels" not in kinds(tried(x, (x[:, 0] * x[:, 1] > 0).long(), 2))


def test_equal_inputs_with_different_labels() -> None:
    x, y = blobs(64, 4)
    found = tried(x[::2].repeat_interleave(2, 0), y, 4).findings
    assert found[0].kind == "contradicting_labels"
    assert (found[0].evidence["share"], found[0].evidence["distinct"]) == (1.0, 32)
    assert not kinds(tried(x[::2].repeat_interleave(2, 0), y[::2].repeat_interleave(2), 4))


def test_class_indices_as_numbers() -> None:
    x, y = blobs(240, 8)
    assert "regressed_indices" in kinds(tried(x, y.float()[:, None], 1, F.mse_loss))
    assert not kinds(tried(x, y, 8))
    # Ratings have an order: close ones have close inputs.
    ordered = torch.randn(240, 10) * 0.3 + y[:, None]
    assert "regressed_indices" not in kinds(tried(ordered, y.float()[:, None], 1, F.mse_loss))


def test_a_class_that_no_label_has() -> None:
    x, y = blobs(120, 4)
    diagnosis = tried(x, y + 1, 5)
    assert not kinds(diagnosis)
    assert [one.evidence["class"] for one in diagnosis.advice if one.kind == "absent_class"] == [0]


@pytest.mark.parametrize("ignored", [-100, 0])
def test_padding_in_the_loss(ignored: int) -> None:
    torch.manual_seed(0)
    x, lengths = torch.randint(1, 12, (32, 16)), torch.randint(2, 8, (32,))
    x[torch.arange(16) >= lengths[:, None]] = 0
    y = torch.cat([x[:, 1:], x[:, :1] * 0], 1)
    model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 12))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=ignored)

    found = kinds(diagnose(model, (x, y), loss=loss))
    assert found == ["padding_counts"] * (ignored == -100)


def test_a_loss_of_zero() -> None:
    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets[:, :1]).square() * targets[:, 1:]).mean()

    x = torch.randn(48, 6)
    y = torch.stack([x[:, 0], torch.zeros(48)], 1)
    found = tried(x, y, 1, weighted).findings
    assert found[0].kind == "zero_loss"
    assert "column 1" in found[0].title
    assert not kinds(tried(x, y + torch.tensor([0.0, 1.0]), 1, weighted))


# A penalty outweighs the error, or a term is a number for the optimizer.
TERMS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "a penalty that is a sum": (
        "unbalanced_terms",
        lambda o, t: F.mse_loss(o, t) + 10 * o.square().sum(),
    ),
    "an accuracy": (
        "constant_term",
        lambda o, t: F.mse_loss(o[:, 0], t[:, 0]) + 0.1 * (o[:, 1].sign() != t[:, 1].sign()).float().mean(),
    ),
    "an exponential": ("exponential_loss", lambda o, t: (5 + F.mse_loss(o, t)).exp()),
    "two means": ("", lambda o, t: F.mse_loss(o[:, 0], t[:, 0]) + 0.5 * F.l1_loss(o[:, 1], t[:, 1])),
    "a small penalty": ("", lambda o, t: F.mse_loss(o, t) + 1e-6 * o.square().mean()),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_of_a_loss(name: str) -> None:
    kind, loss = TERMS[name]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 6, generator=generator)
    found = kinds(tried(x, torch.tanh(x @ torch.randn(6, 2, generator=generator)), 2, loss))
    assert kind in found if kind else not found
