"""Residual blocks of several streams: where schemes start, and kinds of hyper-connections beyond the gallery's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery.steps import STREAMS, Dynamic, Manifold, Static, Stream, Streams
from torch import Tensor, nn

import normless as nl

X = torch.randn(4, 6)


class WithoutMixing(Static):
    def forward(self, h: Tensor) -> Tensor:
        return h + self.writes.view(1, -1, 1) * self.branch(self.reads @ h).unsqueeze(1)


class OneMatrix(Stream):
    """One matrix makes the branch's input and the streams after it, as in the best known implementation."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.cat([torch.eye(STREAMS)[:, :1], torch.eye(STREAMS)], 1))
        self.beta = nn.Parameter(torch.ones(STREAMS))

    def forward(self, h: Tensor) -> Tensor:
        mixed = torch.einsum("st,bsd->btd", self.alpha, h)
        return torch.einsum("bd,s->bsd", self.branch(mixed[:, 0]), self.beta) + mixed[:, 1:]


class OfAList(Static):
    """The streams are a list of tensors."""

    def forward(self, h: Tensor) -> Tensor:
        streams = h.unbind(1)
        y = self.branch(sum(a * stream for a, stream in zip(self.reads, streams, strict=True)))
        return torch.stack([stream + b * y for b, stream in zip(self.writes, streams, strict=True)], 1)


@pytest.mark.parametrize("kind", [WithoutMixing, OneMatrix])
def test_a_block_is_the_branch_and_what_joins_the_streams_are_factors(kind: type[Stream]) -> None:
    found = nl.residual_map(Streams(kind), X)
    assert [block.name for block in found.blocks] == [f"layers.{index}" for index in range(3)]
    for index, block in enumerate(found.blocks):
        main = [layer.path for layer in block.branch_layers if layer.kind == "weight" and not layer.gating]
        assert main == [f"layers.{index}.up", f"layers.{index}.down"]
        assert (block.m, found.norms[f"layers.{index}.norm"]) == (2, "last")
    assert (found.unresolved, found.stem[0], found.classifier) == ((), "stem", "head")


def streams_at_end(net: nn.Module) -> Tensor:
    """What the last layer of a network reads: the sum of its streams."""
    seen: list[Tensor] = []
    net.get_submodule("head").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(X)
    return seen[0]


KINDS: list[tuple[type[Stream], str]] = [(Static, "fixup")]
KINDS += [
    (kind, "skipinit(keep_scale=False)") for kind in (Static, Dynamic, Manifold, WithoutMixing, OneMatrix, OfAList)
]


@pytest.mark.parametrize(("kind", "scheme"), KINDS)
def test_schemes_that_start_without_branches_start_at_the_mixed_streams(kind: type[Stream], scheme: str) -> None:
    model = Streams(kind)
    net, without = nl.convert(model, scheme, X), nl.convert(model, "none(keep_scale=False)", X)
    layers: Any = without.layers
    for layer in layers:
        nn.init.zeros_(layer.down.weight)
        nn.init.zeros_(layer.down.bias)
    torch.testing.assert_close(streams_at_end(net), streams_at_end(without), rtol=1e-4, atol=1e-5)
    assert sum(path.endswith("multiplier") for path, _ in net.named_parameters()) == 3


class Bare(nn.Module):
    """A matrix of the width's size that forward code applies to each of several copies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        h = (x[..., None] * self.scale).unsqueeze(1).expand(-1, 3, -1, -1)
        return h + torch.relu(h @ self.first) @ self.second


def test_a_weight_beside_copies_stays_a_weight() -> None:
    (block,) = nl.residual_map(Bare(), torch.randn(2, 5)).blocks
    assert block.branch == (":first", ":second")
