"""Networks with several streams, tokens, recurrent layers, and hyper-connections."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless import convert, residual_map

WIDTH = 8


class Layers(nn.Module):
    """Linear layers f, g, h, k, q to write forward passes with, two norms, and a learned token."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.f, self.g, self.h, self.k, self.q = (nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))


class JoinedAnew(Layers):
    """Two parts of a sequence, joined for the branch and joined again for the skip path."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.stem(x).split(2, 1)
        y = self.norm(torch.cat((first, second), 1))
        x = self.g(self.f(y).relu()) + torch.cat((first, second), 1)
        first, second = x.split(2, 1)
        y = self.norm2(torch.cat((first, second), 1))
        return self.k(self.h(y).relu()) + torch.cat((first, second), 1)


def test_parts_that_are_joined_anew_are_the_same_activation() -> None:
    found = residual_map(JoinedAnew(), torch.randn(2, 4, WIDTH))
    assert [block.branch for block in found.blocks] == [("f", "g"), ("h", "k")]
    assert all(block.identity_skip for block in found.blocks)
    assert found.stem == ("stem",)
    assert found.norms == {"norm": "last", "norm2": "last"}


class JoinedOtherwise(Layers):
    """The same with a third part of random numbers that are drawn anew, or with the parts in another order."""

    def __init__(self, is_random: bool) -> None:
        super().__init__()
        self.is_random = is_random

    def forward(self, x: Tensor) -> Tensor:
        parts = self.stem(x).split(2, 1)
        third = [torch.rand(2, 1, WIDTH)] * self.is_random
        y = self.g(self.f(torch.cat((*parts, *third), 1)).relu())
        third = [torch.rand(2, 1, WIDTH)] * self.is_random
        return y + torch.cat((*parts, *third) if self.is_random else parts[::-1], 1)


@pytest.mark.parametrize("is_random", [True, False])
def test_other_parts_or_random_numbers_are_no_identity(is_random: bool) -> None:
    found = residual_map(JoinedOtherwise(is_random), torch.randn(2, 4, WIDTH))
    assert not any(block.identity_skip for block in found.blocks)


class ClassAttention(Layers):
    """A class token whose norm attends to itself and to what is made of the input (Touvron et al. 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        x, token = self.stem(x), self.token.expand(2, -1, -1)
        for _ in range(2):
            y = self.norm(token)
            every = torch.cat((y, x), 1)
            token = token + self.h(F.scaled_dot_product_attention(self.f(y), self.g(every), self.k(every)))
        return token


def test_a_learned_token_has_residual_sums_from_the_first_on() -> None:
    net = ClassAttention()
    x = torch.randn(2, 3, WIDTH)
    found = residual_map(net, x)
    assert [set(block.branch) for block in found.blocks] == [{"f", "g", "k", "h"}] * 2
    assert found.stem == ("stem",)
    assert found.norms == {"norm": "last"}


class ClassToken(ClassAttention):
    """The same with layers of its own for one sum, so that it converts."""

    def forward(self, x: Tensor) -> Tensor:
        x, token = self.stem(x), self.token.expand(2, -1, -1)
        y = self.norm(token)
        every = torch.cat((y, x), 1)
        return token + self.h(F.scaled_dot_product_attention(self.f(y), self.g(every), self.k(every)))


def test_the_norm_of_a_token_is_removed_and_its_branch_begins_at_zero() -> None:
    net = ClassToken()
    new = convert(net, "skipinit", torch.randn(2, 3, WIDTH))
    torch.testing.assert_close(new(torch.randn(2, 3, WIDTH)), net.token.expand(2, -1, -1))
    assert isinstance(new.norm, nn.Identity)


class JointAttention(nn.Module):
    """Two streams with query, key, value and output of their own for one attention over both (Esser et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = Layers(), Layers()

    def forward(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        image, text = self.image.stem(image), self.text.stem(text)
        streams = ((self.text, self.text.norm(text)), (self.image, self.image.norm(image)))
        q, k, v = (torch.cat([getattr(one, name)(x) for one, x in streams], 1) for name in "fgk")
        both = F.scaled_dot_product_attention(q, k, v)
        size = text.shape[1]
        return image + self.image.h(both[:, size:]), text + self.text.h(both[:, :size])


def test_the_layers_of_a_joint_attention_are_each_on_the_branch_of_its_stream() -> None:
    found = residual_map(JointAttention(), torch.randn(2, 5, WIDTH), torch.randn(2, 3, WIDTH))
    assert [set(block.branch) for block in found.blocks] == [
        {f"{stream}.{name}" for name in "fgkh"} for stream in ("image", "text")
    ]
    assert set(found.stem) == {"image.stem", "text.stem"}
    assert found.norms == {"image.norm": "last", "text.norm": "last"}


class StateSpace(Layers):
    """Δ computed from a view of x, D · x beside the scan of another view (Gu & Dao 2023)."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.f(x))
        across = y.mT
        step = F.softplus(self.h(self.g(y)))
        return self.k((torch.cumsum(step.mT * across, -1) + across * self.token.mT).mT)


def test_a_fork_is_the_activation_whichever_view_the_skip_path_reads() -> None:
    (block,) = residual_map(StateSpace(), torch.randn(2, 3, WIDTH)).blocks
    assert set(block.branch) == {"g", "h"}
    assert [layer.kind for layer in block.skip_layers] == ["scale"]


class Recurrent(nn.Module):
    """A recurrent layer of some levels beside a linear layer with norm and activation (Supratak et al. 2017)."""

    def __init__(self, kind: type[nn.RNNBase], levels: int) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.recurrent = kind(WIDTH, WIDTH, num_layers=levels, batch_first=True)
        self.shortcut = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y, _ = self.recurrent(x)
        return y + self.shortcut(x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_of_several_levels_is_longer_than_a_projection(kind: type[nn.RNNBase]) -> None:
    (block,) = residual_map(Recurrent(kind, 3), torch.randn(2, 4, WIDTH)).blocks
    assert (block.branch, block.skip, block.m) == (("recurrent",), ("shortcut.0",), 1)
    found = residual_map(Recurrent(kind, 1), torch.randn(2, 4, WIDTH))
    assert found.blocks == ()
    assert len(found.unresolved) == 1, "of two paths of one layer none is the skip path"


class Unit(nn.Module):
    """A residual and a transient stream that exchange what they have (Targ et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.to_other, self.transient, self.back = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        back, other = self.back(beside), self.to_other(x)
        return (self.own(x) + x + back).relu(), (self.transient(beside) + other).relu()


class TwoStreams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.units = nn.ModuleList([Unit(), Unit()])

    def forward(self, x: Tensor) -> Tensor:
        x, beside = self.first(x).relu(), self.second(x).relu()
        for unit in self.units:
            x, beside = unit(x, beside)
        return torch.cat((x, beside), 1)


def test_layers_beside_the_first_block_are_none_of_the_stem() -> None:
    found = residual_map(TwoStreams(), torch.randn(2, WIDTH))
    assert [block.branch for block in found.blocks] == [("units.0.own",), ("units.1.own",)]
    assert found.stem == ("first", "second")
    between = {layer.path for layer in found.trunk_layers if layer.kind == "weight"}
    assert {"units.0.back", "units.0.transient"} <= between


class SumOfSums(Layers):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return sum([x + self.g(self.f(x).relu()), x + self.k(self.h(x).relu())])  # type: ignore[return-value]


def test_a_sum_of_two_residual_sums_is_two_blocks() -> None:
    found = residual_map(SumOfSums(), torch.randn(2, WIDTH))
    assert [block.branch for block in found.blocks] == [("f", "g"), ("h", "k")]
    assert not any(block.inner for block in found.blocks)


STREAMS = 4


class Layer(nn.Module):
    """The branch: a norm and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 16),
            nn.Linear(16, WIDTH),
        )

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return y


class Static(Layer):
    """h ← A h + b f(a h), by einsum (Zhu et al. 2024, equation 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.writes = nn.Parameter(torch.eye(STREAMS)[0]), nn.Parameter(torch.ones(STREAMS))
        self.mixes = nn.Parameter(torch.eye(STREAMS))

    def forward(self, h: Tensor) -> Tensor:
        y = self.branch(torch.einsum("n,bnc->bc", self.reads, h))
        return torch.einsum("mn,bnc->bmc", self.mixes, h) + self.writes[None, :, None] * y[:, None]


class ByMatrixProducts(Static):
    def forward(self, h: Tensor) -> Tensor:
        y = self.branch((self.reads[:, None] * h).sum(1))
        return self.mixes @ h + torch.einsum("n,bc->bnc", self.writes, y)


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
        self.to_alpha, self.to_beta = (
            nn.Linear(WIDTH, STREAMS + 1),
            nn.Linear(WIDTH, 1),
        )
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
        self.own_norm, self.gates = (
            nn.RMSNorm(STREAMS * WIDTH),
            nn.Linear(STREAMS * WIDTH, 2 * STREAMS + STREAMS**2),
        )

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
        self.stem, self.norm, self.head = (
            nn.Linear(3, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 5),
        )
        self.layers = nn.ModuleList(kind() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)[:, None].expand(-1, STREAMS, -1)
        for layer in self.layers:
            h = layer(h)
        y: Tensor = self.head(self.norm(h.sum(1)))
        return y


class OfAList(Static):
    """The streams are a list of tensors."""

    def forward(self, h: Tensor) -> Tensor:
        streams = h.unbind(1)
        y = self.branch(sum(a * stream for a, stream in zip(self.reads, streams, strict=True)))  # type: ignore[arg-type]
        return torch.stack([stream + b * y for b, stream in zip(self.writes, streams, strict=True)], 1)


KINDS = [Static, ByMatrixProducts, WithoutMixing, OneMatrix, Dynamic, Manifold]


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


@pytest.mark.parametrize("kind", [*KINDS, OfAList])
@pytest.mark.parametrize("scheme", ["skipinit(keep_scale=False)", "fixup", "rezero(keep_scale=False)"])
def test_schemes_that_start_without_branches_start_at_the_mixed_streams(kind: type[Layer], scheme: str) -> None:
    model, x = network(kind)
    net, without = nl.convert(model, scheme, x), nl.convert(model, "none(keep_scale=False)", x)
    for layer in without.layers:
        nn.init.zeros_(layer.down.weight)
        nn.init.zeros_(layer.down.bias)
    torch.testing.assert_close(streams_at_end(net, x), streams_at_end(without, x), rtol=1e-4, atol=1e-5)
    assert sum(path.endswith("multiplier") for path, _ in net.named_parameters()) == 3


def test_peri_norm_and_dyt_of_streams() -> None:
    model, x = network(Static)
    net = nl.convert(model, "peri_norm", x)
    assert net(x).isfinite().all()
    assert sum(isinstance(one, nn.LayerNorm) for one in net.modules()) == 7
    assert nl.convert(model, "dyt", x)(x).isfinite().all()


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
