"""Leaks: outputs that see their targets among the inputs, next to networks that look alike and are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diagnosed import diagnose
from torch import Tensor, nn
from torch.nn import functional as F

from normless.diagnosis import Diagnosis
from normless.probes import own_loss

LEAKS = {
    "sees_future", "unshifted_targets", "backward_shift", "visible_targets", "target_channel", "target_column",
    "bypassed_bottleneck", "shifted_twice",
}  # fmt: skip


def leaks(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings if finding.kind in LEAKS]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)


def shifting_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return token_loss(logits[:, :-1], targets[:, 1:])


def tokens(examples: int = 12, positions: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, 20, (examples, positions), generator=generator)


class Attention(nn.Module):
    """One layer of attention; `diagonal` is the first later position that is masked, None masks nothing."""

    def __init__(self, diagonal: int | None = 1, between: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.positions = nn.Embedding(20, 16), nn.Parameter(0.1 * torch.randn(20, 16))
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 20)
        self.diagonal, self.between = diagonal, between

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.positions[: x.shape[1]]
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if self.diagonal is not None:
            mask = torch.ones(x.shape[1], x.shape[1]).triu(self.diagonal).bool()
            scores = scores.masked_fill(mask, -1e9)
        h = h + scores.softmax(-1) @ v
        result: Tensor = self.head(h if self.between is None else self.between(h))
        return result


class TimeFirst(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.t()).transpose(0, 1)


def over_positions(h: Tensor) -> Tensor:
    return (h - h.mean(1, keepdim=True)) / (h.std(1, keepdim=True) + 1e-5)


@pytest.mark.parametrize(
    ("model", "batch", "loss", "kind"),
    [
        (Attention(), lambda x: (x[:, :-1], x[:, 1:]), token_loss, ""),
        (Attention(None), lambda x: (x[:, :-1], x[:, 1:]), token_loss, "sees_future"),
        (Attention(2), lambda x: (x[:, :-1], x[:, 1:]), token_loss, "sees_future"),
        (Attention(1, over_positions), lambda x: (x[:, :-1], x[:, 1:]), token_loss, "sees_future"),
        (Attention(None), lambda x: (x[:, :-1], x[:, 1:].flatten()), token_loss, "sees_future"),
        (Attention(None), lambda x: (x, x), shifting_loss, "sees_future"),
        (Attention(), lambda x: (x, x), shifting_loss, ""),
        (Attention(), lambda x: (x[:, :-1], x[:, 1:]), shifting_loss, "shifted_twice"),
        (Attention(), lambda x: (x, x), token_loss, "unshifted_targets"),
        (Attention(), lambda x: (x, x.roll(1, 1)), token_loss, "backward_shift"),
        (Attention(), lambda x: (x, x.roll(-1, 1)), token_loss, ""),
        (TimeFirst(), lambda x: (x[:, :-1].t(), x[:, 1:].t()), token_loss, ""),
        (TimeFirst(None), lambda x: (x[:, :-1].t(), x[:, 1:].t()), token_loss, "sees_future"),
        # Non-autoregressive: the targets are in view, in another order.
        (Attention(None), lambda x: (x, x.flip(1)), token_loss, ""),
    ],
)
def test_language_models(model: nn.Module, batch: Callable[[Tensor], Any], loss: Any, kind: str) -> None:
    assert leaks(diagnose(model, batch(tokens()), loss=loss)) == [kind] * bool(kind)


def test_the_place_and_the_reach_of_a_leak() -> None:
    x = tokens()
    found = {}
    for diagonal in (None, 2):
        (finding,) = diagnose(Attention(diagonal), (x[:, :-1], x[:, 1:]), loss=token_loss).findings
        found[diagonal] = "one position" in str(finding.evidence["ahead"])
        assert "q @ k" in finding.title or "softmax" in finding.title
    assert found == {None: False, 2: True}
    model = nn.Sequential(nn.Embedding(20, 8), nn.Sequential(), Recurrent(8, 20, both=True))
    (finding,) = diagnose(model, (x[:, :-1], x[:, 1:]), loss=token_loss).findings
    assert finding.where == ("2.layer",)


def test_masked_language_models() -> None:
    x = tokens(24, 12)
    hidden = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    targets = torch.where(hidden, x, -100)
    model = Attention(None)
    assert leaks(diagnose(model, (x, targets), loss=token_loss)) == ["visible_targets"]
    assert not leaks(diagnose(model, (torch.where(hidden, 0, x), targets), loss=token_loss))


class Lossy(nn.Module):
    """A network that computes its loss from labels, as those of transformers do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(ids)
        return {"loss": shifting_loss(logits, labels), "logits": logits}


@pytest.mark.parametrize("diagonal", [None, 1])
def test_labels_among_the_arguments(diagonal: int | None) -> None:
    x = tokens()
    found = diagnose(Lossy(Attention(diagonal)), ({"ids": x, "labels": x}, None), loss=own_loss)
    assert leaks(found) == ["sees_future"] * (diagonal is None)


class Recurrent(nn.Module):
    def __init__(self, width: int, outputs: int, both: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.GRU(width, 12, batch_first=True, bidirectional=both)
        self.head = nn.Linear(24 if both else 12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(x)[0]).squeeze(-1)
        return result


def test_continuous_sequences() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 16, 3).cumsum(1)
    following = x[:, :-1], x[:, 1:, 0]
    assert leaks(diagnose(Recurrent(3, 1, both=True), following, loss=F.mse_loss)) == ["sees_future"]
    assert not leaks(diagnose(Recurrent(3, 1), following, loss=F.mse_loss))
    y = x[..., 0] * x[..., 1]
    assert not leaks(diagnose(Recurrent(3, 1, both=True), (x, y), loss=F.mse_loss))
    given = torch.cat([x, y[..., None]], 2)
    assert leaks(diagnose(Recurrent(4, 1), (given, y), loss=F.mse_loss)) == ["target_channel"]


class Masked(nn.Module):
    """A masked convolution over images, which sees the pixels before its own, and its own if `own`."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
        mask = torch.ones(3, 3)
        mask[1, 1 + own :] = mask[2] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        h = F.conv2d(x, self.first.weight * self.get_buffer("mask"), self.first.bias, padding=1)
        result: Tensor = self.last(F.relu(h))
        return result


@pytest.mark.parametrize("own", [True, False])
def test_images_pixel_by_pixel(own: bool) -> None:
    x = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert leaks(diagnose(Masked(own), (x, x), loss=F.mse_loss)) == ["unshifted_targets"] * own


class Coder(nn.Module):
    """An autoencoder, possibly with a path around its code."""

    def __init__(self, around: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder, self.around = nn.Linear(16, 3), nn.Linear(3, 16), around

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.decoder(F.relu(self.encoder(x)))
        return result + x if self.around else result


@pytest.mark.parametrize("around", [True, False])
def test_autoencoders(around: bool) -> None:
    x = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
    assert leaks(diagnose(Coder(around), (x, x), loss=F.mse_loss)) == ["bypassed_bottleneck"] * around
    noisy = x + 0.1 * torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
    assert not leaks(diagnose(Coder(around), (noisy, x), loss=F.mse_loss))


def mlp(inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def test_tables_with_the_label() -> None:
    generator = torch.Generator().manual_seed(0)
    x, label = torch.randn(64, 6, generator=generator), torch.randint(4, (64,), generator=generator)
    price = x @ torch.randn(6, 1, generator=generator) + torch.rand(64, 1, generator=generator)
    codes = torch.tensor([3.0, 1.5, 7.0, 2.0])
    for column in (label[:, None].float(), codes[label][:, None], F.one_hot(label, 4).float()):
        given = torch.cat([x, column], 1)
        assert leaks(diagnose(mlp(given.shape[1], 4), (given, label))) == ["target_column"]
    scaled = torch.cat([x, (price - price.mean()) / price.std()], 1)
    assert leaks(diagnose(mlp(7, 1), (scaled, price), loss=F.mse_loss)) == ["target_column"]
    assert not leaks(diagnose(mlp(6, 4), (x, label)))
    assert not leaks(diagnose(mlp(6, 1), (x, price), loss=F.mse_loss))
    # Functions of one input are learned in examples, and classes may have prototypes.
    line = torch.linspace(-1, 1, 64)[:, None]
    assert not leaks(diagnose(mlp(1, 1), (line, 2 * line + 1), loss=F.mse_loss))
    prototypes = torch.randn(4, 6, generator=generator)[label]
    assert not leaks(diagnose(mlp(6, 4), (prototypes, label)))


class Conditioned(nn.Module):
    """A classifier that is given the labels, for a margin of the true class or as a further input."""

    def __init__(self, margin: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.embed, self.head = nn.Linear(6, 16), nn.Embedding(5, 16), nn.Linear(16, 5)
        self.margin = margin

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        h = self.body(x) + (0 if self.margin else self.embed(labels))
        result: Tensor = self.head(F.relu(h))
        return result - 0.3 * F.one_hot(labels, 5) if self.margin else result


@pytest.mark.parametrize("margin", [True, False])
def test_labels_that_are_arguments(margin: bool) -> None:
    x, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 5
    found = diagnose(Conditioned(margin), ((x, labels), labels))
    assert leaks(found) == ["target_column"] * (not margin)
