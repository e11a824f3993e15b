"""Residual sums beyond those of the gallery: their additions, joined skip paths, embeddings, other sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normless import ResidualMap, residual_map
from normless.recording import ADDITIONS

WIDTH = 8
Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """A stem, linear and convolutional layers to write blocks with, and the forward pass under test."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.written = forward
        self.stem, self.f, self.g, self.h = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.position = nn.Parameter(torch.zeros(WIDTH))
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, self.stem(x))


def map_of(forward: Forward) -> ResidualMap:
    return residual_map(Net(forward), torch.randn(2, 3, WIDTH))


def second_first(net: Net, x: Tensor) -> Tensor:
    g = net.g(torch.tanh(x))
    return x + net.f(torch.relu(x)) + g


@pytest.mark.parametrize(("forward", "order", "additions"), [
    (second_first, ["f", "g"], [(0, 1), (1, 1)]),
    (lambda net, x: net.f(torch.relu(x)) + (net.g(torch.tanh(x)) + x), ["g", "f"], [(0, 0), (1, 0)]),
    (lambda net, x: (net.f(torch.relu(x)) + net.g(torch.tanh(x))) + x, ["f", "g"], [(1, 0)]),
    (lambda net, x: x + sum([net.f(torch.relu(x)), net.g(torch.tanh(x))]), ["f", "g"], [(1, 1)]),
])  # fmt: skip
def test_branches_follow_the_additions(forward: Forward, order: list[str], additions: list[tuple[int, int]]) -> None:
    found = map_of(forward)
    (block,) = found.blocks
    assert [branch[-1].path for branch in block.branches] == order
    assert found.flow is not None
    calls = [call for call in found.flow.calls if call.name in ADDITIONS and call.args == (Tensor, Tensor)]
    assert [(calls.index(addition.made_by), addition.branch) for addition in block.additions] == additions


def test_several_branches_beside_a_skip_path_joined_from_two_layers() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        skip = net.norm(torch.cat((net.h(x)[..., :4], net.h(x.roll(1, 1))[..., 4:]), 2))
        return 0.3 * net.g(net.f(x).relu()) + 0.7 * net.f(net.g(x).relu()) + skip

    (block,) = map_of(forward).blocks
    assert [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches] == [
        ["f", "g"],
        ["g", "f"],
    ]
    assert set(block.skip) == {"h"}


def test_embeddings_of_tokens_and_their_positions_share_no_activation() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(9, WIDTH), nn.Embedding(9, WIDTH)
            self.f = nn.Linear(WIDTH, WIDTH)

        def forward(self, tokens: Tensor) -> Tensor:
            places = (tokens != 1).cumsum(-1)
            x = self.words(tokens) + self.places(places)
            return x + self.f(x)

    (block,) = residual_map(Tokens(), torch.zeros(2, 4, dtype=torch.int64)).blocks
    assert block.branch == ("f",)


def test_the_values_of_an_attention_to_something_else_belong_to_the_branch() -> None:
    class Cross(Net):
        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            x = self.stem(x)
            return x + self.h(torch.softmax(self.f(x) @ memory.mT, -1) @ self.g(memory)) + 0 * memory.sum()

    (block,) = residual_map(Cross(lambda net, x: x), torch.randn(2, 3, WIDTH), torch.randn(2, 4, WIDTH)).blocks
    assert set(block.branch) == {"f", "g", "h"}
    assert block.m == 2
