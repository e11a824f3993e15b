"""Sums that are no plain addition: steps between activations, hyper-connections; experts; weights without modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.row import Row, add, entropy, row

WIDTH, STREAMS = 8, 4
ROWS = "randn(4, 6)"


class Step(nn.Module):
    """A branch of two linear layers with outputs of length 1, a learned step to it; the sum of length 1 (nGPT)."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = forward
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.step = nn.Parameter(torch.full((WIDTH,), 0.3))

    def target(self, x: Tensor) -> Tensor:
        return F.normalize(self.down(F.silu(self.up(x))), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.written(self, x), dim=-1)


def of_unit_skip(layer: Step, x: Tensor) -> Tensor:
    a = F.normalize(x, dim=-1)
    return a + layer.step * (layer.target(x) - a)


STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "lerp": lambda layer, x: torch.lerp(x, layer.target(x), layer.step),
    "lerp from the branch": lambda layer, x: layer.target(x).lerp(x, 1 - layer.step),
    "lerp written out": lambda layer, x: x + layer.step * (layer.target(x) - x),
    "lerp subtracted": lambda layer, x: x - layer.step * (x - layer.target(x)),
    "lerp of two products": lambda layer, x: (1 - layer.step) * x + layer.step * layer.target(x),
    "lerp of a unit skip path": of_unit_skip,
}
for name, forward in STEPS.items():

    def stepping(forward: Callable[[Any, Tensor], Tensor] = forward) -> nn.Module:
        return nn.Sequential(nn.Linear(6, WIDTH), Step(forward), Step(forward), nn.Linear(WIDTH, 3))

    # x − f(x) is a sum too.
    inner = name == "lerp subtracted"
    listed = [(f"{number}: up down", [f"{number}: up down"] * inner) for number in (1, 2)]
    stated = {"refused": {"fixup": "(1 − c)"}, "stem": "0", "heads": "3", "loss": entropy}
    row(ROWS, listed, name=name, odd="x + c·(f(x) − x)", **stated)(stepping)


class Stream(nn.Module):
    """The branch of a layer of several streams: a norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def branch(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


class Static(Stream):
    """h ← A h + b f(a h), by einsum (Zhu et al. 2024, equation 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.writes = nn.Parameter(torch.eye(STREAMS)[0]), nn.Parameter(torch.ones(STREAMS))
        self.mixes = nn.Parameter(torch.eye(STREAMS))

    def forward(self, h: Tensor) -> Tensor:
        y = self.branch(torch.einsum("n,bnc->bc", self.reads, h))
        return torch.einsum("mn,bnc->bmc", self.mixes, h) + self.writes[None, :, None] * y[:, None]


class Dynamic(Stream):
    """One matrix makes the branch's input and the streams after it, computed from them (equation 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.cat([torch.eye(STREAMS)[:, :1], torch.eye(STREAMS)], 1))
        self.beta, self.own_norm = nn.Parameter(torch.ones(STREAMS)), nn.LayerNorm(WIDTH)
        self.to_alpha, self.to_beta = nn.Linear(WIDTH, STREAMS + 1), nn.Linear(WIDTH, 1)
        self.scale = nn.Parameter(torch.full((2,), 0.01))

    def forward(self, h: Tensor) -> Tensor:
        z = self.own_norm(h)
        alpha = torch.tanh(self.to_alpha(z)) * self.scale[0] + self.alpha
        beta = torch.tanh(self.to_beta(z))[..., 0] * self.scale[1] + self.beta
        mixed = torch.einsum("bst,bsd->btd", alpha, h)
        return torch.einsum("bd,bs->bsd", self.branch(mixed[:, 0]), beta) + mixed[:, 1:]


class Manifold(Stream):
    """The mixture of the streams is doubly stochastic (Xie et al. 2025, mHC)."""

    def __init__(self) -> None:
        super().__init__()
        self.own_norm, self.gates = nn.RMSNorm(STREAMS * WIDTH), nn.Linear(STREAMS * WIDTH, 2 * STREAMS + STREAMS**2)

    def forward(self, h: Tensor) -> Tensor:
        reads, writes, mixes = self.gates(self.own_norm(h.flatten(1))).split([STREAMS, STREAMS, STREAMS**2], -1)
        mixes = mixes.view(-1, STREAMS, STREAMS).exp()
        for _ in range(3):
            mixes = mixes / mixes.sum(-1, keepdim=True)
            mixes = mixes / mixes.sum(-2, keepdim=True)
        y = self.branch(torch.einsum("bn,bnc->bc", reads.sigmoid(), h))
        return torch.einsum("bmn,bnc->bmc", mixes, h) + 2 * writes.sigmoid()[..., None] * y[:, None]


@row(ROWS, None, Static, name="hyper-connections", count=(3, 0, None), odd="four streams, mixed", loss=entropy)
@row(ROWS, None, Dynamic, name="dynamic hyper-connections", count=(3, 0, None), odd="computed mixtures", loss=entropy)
@row(ROWS, None, Manifold, name="hyper-connections on a manifold", count=(3, 0, None), odd="Sinkhorn", loss=entropy)
class Streams(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
        self.layers = nn.ModuleList(kind() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)[:, None].expand(-1, STREAMS, -1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h.sum(1)))


class Bare(nn.Module):
    """x + f(x) whose last weight is a parameter of the block."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = forward
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.written(self, torch.relu(self.first(self.norm(x))))


def two(make: Callable[[], nn.Module]) -> nn.Module:
    """Two blocks between linear layers."""
    return nn.Sequential(nn.Linear(6, WIDTH), make(), make(), nn.Linear(WIDTH, 3))


BARE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "F.linear of a parameter": lambda block, h: F.linear(h, block.w),
    "a product with a parameter": lambda block, h: h @ block.w,
    "einsum with a parameter": lambda block, h: torch.einsum("bi,io->bo", h, block.w),
}
for name, forward in BARE.items():
    bare = lambda forward=forward: two(lambda: Bare(forward))  # noqa: E731
    stated = {"odd": "a weight without a module", "refused": {"fixup": "at 1"}, "loss": entropy}
    add(Row(name, "steps", bare, ROWS, blocks=("1: first :w", "2: first :w"), **stated))


class Routed(nn.Module):
    """The two best of four experts; their shares are scaled in place, and a permutation is written by index."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        shares, chosen = torch.topk(F.softmax(self.gate(h), -1), 2, dim=-1)
        shares /= shares.sum(-1, keepdim=True)
        order = chosen.argsort(-1)
        inverse = torch.empty_like(order)
        inverse.scatter_(-1, order, torch.arange(2).expand_as(order))
        shares = shares.gather(-1, order).gather(-1, inverse)
        y = torch.einsum("bi,eio->beo", torch.relu(h), self.experts)
        picked = y.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        return x + (shares[..., None] * picked).sum(1)


class Shares(nn.Module):
    """Two layers for each of three experts, all of them, with shares from a softmax of a router."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        shares = F.softmax(self.gate(x), -1)
        parts = [shares[..., at : at + 1] * expert(x) for at, expert in enumerate(self.experts)]
        return x + parts[0] + parts[1] + parts[2]


OF_EXPERTS = {"count": (2, 0, 0), "stem": "0", "loss": entropy}


@row(ROWS, None, Routed, name="routed experts", odd="rows picked by a router", **OF_EXPERTS)
@row(ROWS, None, Shares, name="shares of experts", odd="branches by a softmax", **OF_EXPERTS)
def experts(kind: type[nn.Module]) -> nn.Module:
    return two(kind)
