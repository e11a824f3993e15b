"""Residual blocks of several streams: hyper-connections (static, dynamic, manifold-constrained), lists of streams."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normless as nl

STREAMS, WIDTH = 4, 8


class Layer(nn.Module):
    """The branch: a norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def branch(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


class Static(Layer):
    """h ← A h + b f(a h), by einsum (Zhu et al. 2024, equation 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.writes = nn.Parameter(torch.eye(STREAMS)[0]), nn.Parameter(torch.ones(STREAMS))
        self.mixes = nn.Parameter(torch.eye(STREAMS))

    def forward(self, h: Tensor) -> Tensor:
        y = self.branch(torch.einsum("n,bnc->bc", self.reads, h))
        return torch.einsum("mn,bnc->bmc", self.mixes, h) + self.writes[None, :, None] * y[:, None]


class WithoutMixing(Static):
    def forward(self, h: Tensor) -> Tensor:
        return h + self.writes.view(1, -1, 1) * self.branch(self.reads @ h).unsqueeze(1)


class OneMatrix(Layer):
    """One matrix makes the branch's input and the streams after it, as in the best known implementation."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.cat([torch.eye(STREAMS)[:, :1], torch.eye(STREAMS)], 1))
        self.beta = nn.Parameter(torch.ones(STREAMS))

    def forward(self, h: Tensor) -> Tensor:
        mixed = torch.einsum("st,bsd->btd", self.alpha, h)
        return torch.einsum("bd,s->bsd", self.branch(mixed[:, 0]), self.beta) + mixed[:, 1:]


class Dynamic(OneMatrix):
    """What mixes is computed from the streams, too (Zhu et al. 2024, equation 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.own_norm = nn.LayerNorm(WIDTH)
        self.to_alpha, self.to_beta = nn.Linear(WIDTH, STREAMS + 1), nn.Linear(WIDTH, 1)
        self.scale = nn.Parameter(torch.full((2,), 0.01))

    def forward(self, h: Tensor) -> Tensor:
        z = self.own_norm(h)
        alpha = torch.tanh(self.to_alpha(z)) * self.scale[0] + self.alpha
        beta = torch.tanh(self.to_beta(z))[..., 0] * self.scale[1] + self.beta
        mixed = torch.einsum("bst,bsd->btd", alpha, h)
        return torch.einsum("bd,bs->bsd", self.branch(mixed[:, 0]), beta) + mixed[:, 1:]


class Manifold(Layer):
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


class Network(nn.Module):
    def __init__(self, kind: type[Layer]) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(3, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
        self.layers = nn.ModuleList(kind() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)[:, None].expand(-1, STREAMS, -1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h.sum(1)))


class OfAList(Static):
    """The streams are a list of tensors."""

    def forward(self, h: Tensor) -> Tensor:
        streams = h.unbind(1)
        y = self.branch(sum(a * stream for a, stream in zip(self.reads, streams, strict=True)))  # type: ignore[arg-type]
        return torch.stack([stream + b * y for b, stream in zip(self.writes, streams, strict=True)], 1)


KINDS = [Static, WithoutMixing, OneMatrix, Dynamic, Manifold]


def network(kind: type[Layer]) -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    return Network(kind), torch.randn(4, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_the_branch_and_what_joins_the_streams_are_factors(kind: type[Layer]) -> None:
    model, x = network(kind)
    found = nl.residual_map(model, x)
    assert [block.name for block in found.blocks] == [f"layers.{index}" for index in range(3)]
    for block in found.blocks:
        main = [layer.path for layer in block.branch_layers if layer.kind == "weight" and not layer.gating]
        assert [path.rpartition(".")[2] for path in main] == ["up", "down"]
        assert block.m == 2
    assert found.unresolved == ()
    assert (found.stem[0], found.classifier) == ("stem", "head")
    assert {f"layers.{index}.norm" for index in range(3)} <= {
        path for path, role in found.norms.items() if role == "last"
    }


def streams_at_end(net: nn.Module, x: Tensor) -> Tensor:
    """What the last layer of a network reads: the sum of its streams."""
    seen: list[Tensor] = []
    hook = net.get_submodule("head").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net(x)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("kind", "scheme"), [*((kind, "skipinit(keep_scale=False)") for kind in [*KINDS, OfAList]), (Static, "fixup")]
)
def test_schemes_that_start_without_branches_start_at_the_mixed_streams(kind: type[Layer], scheme: str) -> None:
    model, x = network(kind)
    net, without = nl.convert(model, scheme, x), nl.convert(model, "none(keep_scale=False)", x)
    for layer in without.layers:
        nn.init.zeros_(layer.down.weight)
        nn.init.zeros_(layer.down.bias)
    torch.testing.assert_close(streams_at_end(net, x), streams_at_end(without, x), rtol=1e-4, atol=1e-5)
    assert sum(path.endswith("multiplier") for path, _ in net.named_parameters()) == 3


def test_a_weight_beside_copies_stays_a_weight() -> None:
    """A matrix of the width's size that forward code applies to each of several copies."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 3) for _ in range(2))
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            h = (x[..., None] * self.scale).unsqueeze(1).expand(-1, 3, -1, -1)
            return h + torch.relu(h @ self.first) @ self.second

    (block,) = nl.residual_map(Bare(), torch.randn(2, 5)).blocks
    assert block.branch == (":first", ":second")
