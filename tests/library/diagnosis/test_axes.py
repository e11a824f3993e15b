"""Axes that are mistaken for each other: examples, positions and channels; norms that remove what targets need."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose
from torch import Tensor, nn
from torch.nn import functional as F

from normless.diagnosis import Diagnosis
from normless.diagnosis.reshapes import moved_axis

AXES = {"mixes_examples", "place_in_batch", "moved_axis", "invariant_outputs", "norm_of_two", "normalized_outputs"}


def axes(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings if finding.kind in AXES]


class Between(nn.Module):
    """A perceptron with a function of its hidden values."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Linear(6, 16), nn.Linear(16, 3), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.function(self.first(x)))
        return result


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda h: F.normalize(h, dim=0), "normalize"),
        (lambda h: h * h.softmax(0), "softmax"),
        (lambda h: h / h.max(), "max"),
        (lambda h: h.cumsum(0), "cumsum"),
        (lambda h: h.flip(0).cumsum(0).flip(0), "cumsum"),
        (lambda h: h - h.mean(0), "mean"),
        (lambda h: F.normalize(h, dim=1), None),
        (lambda h: h * h.softmax(1), None),
        (lambda h: h - h.mean(1, keepdim=True), None),
    ],
)
def test_the_first_operation_that_mixes_examples(function: Callable[[Tensor], Tensor], name: str | None) -> None:
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
    found = diagnose(Between(function), (x, torch.arange(24) % 3))
    assert axes(found) == ["mixes_examples"] * (name is not None)
    titles = [finding.title for finding in found.findings if finding.kind == "mixes_examples"]
    assert not titles or f" {name}" in titles[0]


class Tokens(nn.Module):
    """Embeddings with positions and a layer of attention."""

    def __init__(self, along: int, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)
        self.register_buffer("positions", torch.randn(40, 16))
        self.along = along

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.get_buffer("positions")[: ids.shape[self.along]]
        h = self.embed(ids) + (positions if self.along else positions[:, None])
        result: Tensor = self.head((h + self.attention(h, h, h)[0]).mean(1))
        return result


@pytest.mark.parametrize(
    ("along", "batch_first", "kind"), [(1, True, ""), (0, True, "place_in_batch"), (1, False, "mixes_examples")]
)
def test_positions_and_attention_along_the_batch(along: int, batch_first: bool, kind: str) -> None:
    ids = torch.randint(12, (20, 7), generator=torch.Generator().manual_seed(0))
    found = diagnose(Tokens(along, batch_first), (ids, torch.arange(20) % 3))
    assert axes(found) == [kind] * bool(kind)


class Pairs(nn.Module):
    """Similarities of all pairs of two sets of examples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(6, 8), nn.Linear(5, 8)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return 10 * F.normalize(self.image(x), dim=1) @ F.normalize(self.text(z), dim=1).t()


class Across(nn.Module):
    """Attention over the examples of the batch, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)[None]
        result: Tensor = self.head((h + self.attention(h, h, h)[0])[0])
        return result


class Tagger(nn.Module):
    """Recurrence with positions first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer, self.head = nn.Embedding(12, 16), nn.GRU(16, 16), nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.embed(ids))[0])
        return result


def test_examples_that_depend_on_each_other_on_purpose() -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(24, 6, generator=generator), torch.randn(24, 5, generator=generator)
    assert not axes(diagnose(Pairs(), ((x, z), torch.arange(24))))
    across = diagnose(Across(), (x, torch.arange(24) % 3))
    assert not axes(across)
    assert "mixes_examples" in [finding.kind for finding in across.advice]
    ids = torch.randint(1, 12, (14, 16), generator=generator)
    ids[torch.arange(14)[:, None] >= torch.randint(4, 14, (16,), generator=generator)] = 0
    loss = lambda outputs, targets: F.cross_entropy(outputs.flatten(0, 1), targets.flatten())  # noqa: E731
    assert not axes(diagnose(Tagger(), (ids, ids % 3), loss=loss))


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ((8, 12, 10, 3), (8, 3, 12, 10), True),
        ((8, 11, 20), (8, 20, 11), True),
        ((16, 9, 24), (16, 4, 9, 6), True),
        ((8, 5, 12, 11), (1056, 5), True),
        ((11, 8, 20), (8, 220), True),
        ((16, 9, 24), (16, 9, 4, 6), False),
        ((8, 5, 12, 11), (8, 660), False),
        ((8, 12, 11, 5), (1056, 5), False),
        ((6, 16, 16, 12), (6, 4, 4, 4, 4, 12), False),
        ((6, 16, 1), (6, 1, 16), False),
        # Heads of width 8 join 8 examples; relative positions are shifted.
        ((11, 8, 32), (11, 32, 8), False),
        ((6, 10, 11), (6, 11, 10), False),
    ],
)
def test_reshapes_that_move_an_axis(before: tuple[int, ...], after: tuple[int, ...], moved: bool) -> None:
    assert torch.zeros(before).reshape(after).shape == after
    assert (moved_axis(before, after, examples=8) is not None) == moved


def test_a_view_in_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 3, 9, 8, generator=generator), torch.randint(5, (6, 9, 8), generator=generator)
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3, padding=1)
    wrong = lambda outputs, targets: F.cross_entropy(outputs.reshape(-1, 5), targets.flatten())  # noqa: E731
    right = lambda outputs, targets: F.cross_entropy(outputs.permute(0, 2, 3, 1).flatten(0, 2), targets.flatten())  # noqa: E731
    assert axes(diagnose(model, (x, y), loss=wrong)) == ["moved_axis"]
    assert not axes(diagnose(model, (x, y), loss=right))


def test_norms_that_remove_the_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(32) % 2
    x = torch.randn(32, 3, 6, 6, generator=generator) + 2 * y[:, None, None, None]

    def network(norm: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        tail = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
        return nn.Sequential(norm, nn.Conv2d(3, 8, 3, padding=1), *tail)

    found = diagnose(network(nn.InstanceNorm2d(3)), (x, y))
    assert axes(found) == ["invariant_outputs"]
    assert found.findings[0].where == ("0",)
    assert not axes(diagnose(network(nn.BatchNorm2d(3)), (x, y)))
    # The same norm, and targets that depend on a pattern.
    pattern = x + 2 * (1 - 2 * y[:, None, None, None]) * (torch.arange(6) % 2) - 2 * y[:, None, None, None]
    assert not axes(diagnose(network(nn.InstanceNorm2d(3)), (pattern, y)))


def test_norms_over_two_values_and_over_the_outputs() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = torch.randn(40, 2, generator=generator), 3 * torch.randn(40, 4, generator=generator)
    assert axes(diagnose(nn.Sequential(nn.LayerNorm(2), body), (x, y), loss=F.mse_loss)) == ["norm_of_two"]
    assert axes(diagnose(nn.Sequential(body, nn.LayerNorm(4)), (x, y), loss=F.mse_loss)) == ["normalized_outputs"]
    assert not axes(diagnose(body, (x, y), loss=F.mse_loss))
    head = nn.Sequential(body, nn.LayerNorm(4), nn.Linear(4, 4))
    assert not axes(diagnose(head, (x, y), loss=F.mse_loss))
