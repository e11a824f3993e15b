"""Conversions of hyper-connections, of sums x + c·(f(x) − x), and of branches that end without a module."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from gallery.steps import STREAMS, WIDTH, Dynamic, Manifold, Static, Step, Stream, Streams
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

X = torch.randn(4, 6)


class OneMatrix(Stream):
    """One matrix makes the branch's input and the streams after it, as in the best known implementation."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.cat([torch.eye(STREAMS)[:, :1], torch.eye(STREAMS)], 1))
        self.beta = nn.Parameter(torch.ones(STREAMS))

    def forward(self, h: Tensor) -> Tensor:
        mixed = torch.einsum("st,bsd->btd", self.alpha, h)
        return torch.einsum("bd,s->bsd", self.branch(mixed[:, 0]), self.beta) + mixed[:, 1:]


KINDS: list[type[Stream]] = [Static, OneMatrix, Dynamic, Manifold]


def streams_at_end(net: nn.Module, x: Tensor) -> Tensor:
    """What the last layer of a network reads: the sum of its streams."""
    seen: list[Tensor] = []
    hook = net.get_submodule("head").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(x)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("kind", "scheme"), [*((kind, "skipinit(keep_scale=False)") for kind in KINDS), (Static, "fixup")]
)
def test_schemes_that_start_without_branches_start_at_the_mixed_streams(kind: type[Stream], scheme: str) -> None:
    model = Streams(kind)
    net, without = nl.convert(model, scheme, X), nl.convert(model, "none(keep_scale=False)", X)
    for layer in without.layers:
        nn.init.zeros_(layer.down.weight)
        nn.init.zeros_(layer.down.bias)
    torch.testing.assert_close(streams_at_end(net, X), streams_at_end(without, X), rtol=1e-4, atol=1e-5)
    assert sum(path.endswith("multiplier") for path, _ in net.named_parameters()) == 3


class ByFunction(Step):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(torch.lerp(x, self.target(x), self.step), dim=-1)


class ByMethod(Step):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.lerp(self.target(x), self.step), dim=-1)


class FromTheBranch(Step):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.target(x).lerp(x, 1 - self.step), dim=-1)


class WrittenOut(Step):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x + self.step * (self.target(x) - x), dim=-1)


@pytest.mark.parametrize("kind", [ByFunction, ByMethod, FromTheBranch, WrittenOut])
def test_an_interpolation_is_the_skip_path_at_zero_and_the_network_at_one(kind: type[Step]) -> None:
    model = nn.Sequential(nn.Linear(6, WIDTH), kind(torch.add), kind(torch.add), nn.Linear(WIDTH, 3))
    closed = nl.convert(model, "skipinit(keep_scale=False)", X)
    expected = model[3](F.normalize(model[0](X), dim=-1))
    torch.testing.assert_close(closed(X), expected, rtol=1e-5, atol=1e-6)
    opened = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", X)
    torch.testing.assert_close(deepcopy(opened)(X), model(X), rtol=1e-5, atol=1e-6)
    assert [block.branch for block in nl.residual_map(opened, X).blocks] == [("1.up", "1.down"), ("2.up", "2.down")]
    F.cross_entropy(closed(X), torch.tensor([0, 1, 2, 0])).backward()
    gradients = [one.grad for path, one in closed.named_parameters() if path.endswith("multiplier")]
    assert len(gradients) == 2
    assert all(one is not None and one.any() for one in gradients)
