"""Inputs that the outputs do not read: arguments, channels, and sequences that padding hides."""

from __future__ import annotations

import pytest
import torch
from diagnosed import diagnose
from torch import Tensor, nn
from torch.nn import functional as F

from normless.diagnosis import Diagnosis

UNREAD = {"inverted_mask", "read_after_padding", "padding_read", "discarded_input", "unread_input", "unread_part"}


def unread(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings if finding.kind in UNREAD]


def advised(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.advice if finding.kind in UNREAD]


def padded(positions: int, longest: int, examples: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 12, (examples, positions), generator=generator)
    lengths = torch.randint(3, longest, (examples,), generator=generator)
    ids[torch.arange(positions) >= lengths[:, None]] = 0
    return ids, lengths


class Recurrent(nn.Module):
    """A recurrent classifier that reads the last step of the batch, of each sequence, or packs the sequences."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer, self.head = nn.Embedding(12, 16), nn.GRU(16, 16, batch_first=True), nn.Linear(16, 3)
        self.way = way

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        if self.way == "packed":
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, True, enforce_sorted=False)
            return self._head(self.layer(packed)[1][-1])
        states = self.layer(self.embed(ids))[0]
        last = states[:, -1] if self.way == "last" else states[torch.arange(len(ids)), lengths - 1]
        return self._head(last)

    def _head(self, state: Tensor) -> Tensor:
        result: Tensor = self.head(state)
        return result


@pytest.mark.parametrize("way", ["last", "own", "packed"])
def test_the_last_step_of_padded_sequences(way: str) -> None:
    found = diagnose(Recurrent(way), (padded(50, 8), torch.arange(24) % 3))
    assert unread(found) == ["read_after_padding"] * (way == "last")
    assert way != "last" or found.findings[0].kind == "read_after_padding"
    # Little padding is no loss.
    assert not unread(diagnose(Recurrent(way), (padded(9, 9), torch.arange(24) % 3)))


class Pooled(nn.Module):
    """Attention of one query over the elements of a sequence, with a mask."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.query, self.head = nn.Linear(5, 16), nn.Parameter(torch.randn(16)), nn.Linear(16, 3)
        self.mask = mask

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        h = F.relu(self.embed(x))
        scores = (h + self.query) @ h.transpose(1, 2) / 4
        keep = {"keys": valid[:, None], "queries": valid[..., None], "inverted": ~valid[:, None]}[self.mask]
        weights = scores.masked_fill(~keep, -1e9).softmax(-1)
        result: Tensor = (
            self.head((weights @ h)[:, 0]) if self.mask != "inverted" else self.head((weights @ h).mean(1))
        )
        return result


@pytest.mark.parametrize(("mask", "kind"), [("keys", ""), ("queries", "padding_read")])
def test_masks_along_an_axis(mask: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 9, 5, generator=generator)
    valid = torch.arange(9) < torch.randint(2, 9, (24, 1), generator=generator)
    assert unread(diagnose(Pooled(mask), ((x, valid), torch.arange(24) % 3))) == [kind] * bool(kind)


class Summary(nn.Module):
    """A summary token that attends to tokens; torch's padding masks are True at positions to be ignored."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.token, self.head = nn.Embedding(12, 16), nn.Parameter(torch.randn(16)), nn.Linear(16, 3)
        self.attention, self.inverted = nn.MultiheadAttention(16, 2, batch_first=True), inverted

    def forward(self, ids: Tensor) -> Tensor:
        query = self.token.expand(len(ids), 1, -1)
        h = self.embed(ids)
        mask = ids != 0 if self.inverted else ids == 0
        result: Tensor = self.head(self.attention(query, h, h, key_padding_mask=mask)[0][:, 0])
        return result


@pytest.mark.parametrize("inverted", [True, False])
def test_an_inverted_padding_mask(inverted: bool) -> None:
    ids, _ = padded(12, 10)
    assert unread(diagnose(Summary(inverted), (ids, torch.arange(24) % 3))) == ["inverted_mask"] * inverted


class Two(nn.Module):
    """A network of two arguments, with the second used, thrown away, or never read."""

    def __init__(self, second: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.other, self.head = nn.Linear(6, 16), nn.Linear(4, 16), nn.Linear(16, 3)
        self.second = second

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        h = self.first(x)
        if self.second != "never read":
            memory = self.other(z)
            h = h + memory * (self.second == "used")
        result: Tensor = self.head(F.relu(h))
        return result


@pytest.mark.parametrize(
    ("second", "found", "advice"),
    [("used", [], []), ("discarded", ["discarded_input"], []), ("never read", [], ["unread_input"])],
)
def test_an_argument_without_influence(second: str, found: list[str], advice: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=generator), torch.randn(24, 4, generator=generator)
    diagnosis = diagnose(Two(second), (inputs, torch.arange(24) % 3))
    assert unread(diagnosis) == found
    assert advised(diagnosis) == advice


def test_a_channel_without_influence() -> None:
    x = torch.randn(24, 4, 6, 6, generator=torch.Generator().manual_seed(0))

    class Some(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = super().forward(x[:, :3])  # type: ignore[no-untyped-call]
            return result

    torch.manual_seed(0)
    body = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    diagnosis = diagnose(Some(*body), (x, torch.arange(24) % 3))
    assert (unread(diagnosis), advised(diagnosis)) == ([], ["unread_part"])
    assert not advised(diagnose(nn.Sequential(*body), (x[:, :3], torch.arange(24) % 3)))
