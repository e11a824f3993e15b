"""T-Fixup, DeepNorm and Fixup find queries and keys by dataflow, whatever the weights of an attention are called."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError

WIDTH, HEADS = 96, 2
IDS = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(0))
close = torch.testing.assert_close
Rows = dict[str, list[Tensor]]


class Network(nn.Module):
    """One transformer layer whose attention a subclass writes; `parts` are its matrices (outputs, inputs) by use."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 11)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.build()

    def build(self) -> None:
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)

    def attend(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def parts(self) -> Rows:
        raise NotImplementedError

    def forward(self, ids: Tensor) -> Any:
        h = self.table(ids)
        h = h + self.out(self.attend(self.norm1(h)))
        return self.head(h + self.down(F.gelu(self.up(self.norm2(h)))))


def softmaxed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, H, T, d) to (B, T, H·d)."""
    return ((q @ k.transpose(-2, -1) / sqrt(q.shape[-1])).softmax(-1) @ v).transpose(1, 2).flatten(2)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]


class Fused(Network):
    """One matrix for all three, its axes split and permuted, as in timm."""

    def attend(self, z: Tensor) -> Tensor:
        return softmaxed(*self.mix(z).reshape(*z.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4))

    def parts(self) -> Rows:
        q, k, v = self.mix.weight.chunk(3)
        return {"q": [q], "k": [k], "v": [v]}


class Reversed(Network):
    """Values, keys, queries from top to bottom."""

    def attend(self, z: Tensor) -> Tensor:
        v, k, q = (heads(part) for part in self.mix(z).split(WIDTH, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def parts(self) -> Rows:
        v, k, q = self.mix.weight.chunk(3)
        return {"q": [q], "k": [k], "v": [v]}


class HeadByHead(Network):
    """Packed head by head and rotated, as in GPT-NeoX; queries are of unit length."""

    def attend(self, z: Tensor) -> Tensor:
        packed = self.mix(z).view(*z.shape[:2], HEADS, -1)
        q, k, v = (part.transpose(1, 2) for part in packed.chunk(3, -1))
        angles = torch.arange(z.shape[1])[:, None] / torch.arange(1, q.shape[-1] + 1)
        q, k = (x * angles.cos() + torch.cat([-x[..., 24:], x[..., :24]], -1) * angles.sin() for x in (q, k))
        return softmaxed(q / q.norm(dim=-1, keepdim=True), k, v)

    def parts(self) -> Rows:
        packed = self.mix.weight.unflatten(0, (HEADS, 3, -1))
        return {use: [packed[:, number].flatten(0, 1)] for number, use in enumerate("qkv")}


class Separate(Network):
    """Three layers without telling names."""

    def build(self) -> None:
        self.alpha, self.beta, self.gamma = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def attend(self, z: Tensor) -> Tensor:
        return softmaxed(*(heads(layer(z)) for layer in (self.alpha, self.beta, self.gamma)))

    def parts(self) -> Rows:
        return {"q": [self.alpha.weight], "k": [self.beta.weight], "v": [self.gamma.weight]}


class Cached(Separate):
    """Keys and values follow an empty cache, keys a learned one."""

    def build(self) -> None:
        super().build()
        self.first = nn.Parameter(torch.randn(1, HEADS, 1, WIDTH // HEADS))

    def attend(self, z: Tensor) -> Tensor:
        q, k, v = (heads(layer(z)) for layer in (self.alpha, self.beta, self.gamma))
        first = self.first.expand(len(z), -1, -1, -1)
        k, v = torch.cat([first, torch.empty(0), k], -2), torch.cat([torch.empty(0), torch.zeros_like(first), v], -2)
        return softmaxed(q, k, v)


class Shared(Separate):
    """Keys and values are of one layer, queries of another."""

    def build(self) -> None:
        self.alpha, self.beta = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def attend(self, z: Tensor) -> Tensor:
        return softmaxed(heads(self.alpha(z)), *(heads(part) for part in self.beta(z).tensor_split(2, -1)))

    def parts(self) -> Rows:
        k, v = self.beta.weight.chunk(2)
        return {"q": [self.alpha.weight], "k": [k], "v": [v]}


class Bare(Network):
    """Parameters and no layers: x @ W, F.linear(x, W) and x @ W.T."""

    def build(self) -> None:
        self.alpha, self.beta, self.gamma = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(3))

    def attend(self, z: Tensor) -> Tensor:
        return softmaxed(heads(z @ self.alpha), heads(F.linear(z, self.beta)), heads(z @ self.gamma.T))

    def parts(self) -> Rows:
        return {"q": [self.alpha.T], "k": [self.beta], "v": [self.gamma]}


class BareFused(Network):
    """One parameter (inputs, outputs) for all three."""

    def build(self) -> None:
        self.mix_of_all = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH))

    def attend(self, z: Tensor) -> Tensor:
        return softmaxed(*(heads(part) for part in (z @ self.mix_of_all).chunk(3, -1)))

    def parts(self) -> Rows:
        return {use: [part.T] for use, part in zip("qkv", self.mix_of_all.chunk(3, 1), strict=True)}


class Summed(Network):
    """Parameters with an axis of heads, contracted by einsum, as is the output."""

    def build(self) -> None:
        self.a, self.b, self.c = (nn.Parameter(torch.randn(WIDTH, HEADS, 48)) for _ in range(3))
        self.o = nn.Parameter(torch.randn(HEADS, 48, WIDTH))

    def attend(self, z: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,dhe->bhte", z, w) for w in (self.a, self.b, self.c))
        logits = torch.einsum("bhqe,bhke->bhqk", q, k) / sqrt(48)
        return torch.einsum("bhqk,bhke,hed->bqd", logits.softmax(-1), v, self.o)

    def parts(self) -> Rows:
        q, k, v = (one.flatten(1).T for one in (self.a, self.b, self.c))
        return {"q": [q], "k": [k], "v": [v], "o": [self.o.flatten(0, 1).T]}


class SummedPacked(Network):
    """One parameter with axes of use and heads."""

    def build(self) -> None:
        self.w = nn.Parameter(torch.randn(HEADS, 3, 48, WIDTH))

    def attend(self, z: Tensor) -> Tensor:
        q, k, v = torch.einsum("btd,hued->ubhte", z, self.w)
        return softmaxed(q, k, v)

    def parts(self) -> Rows:
        return {use: [self.w[:, number].flatten(0, 1)] for number, use in enumerate("qkv")}


class Torchs(Network):
    """torch's module."""

    def build(self) -> None:
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def attend(self, z: Tensor) -> Tensor:
        y: Tensor = self.inner(z, z, z, need_weights=False)[0]
        return y

    def parts(self) -> Rows:
        q, k, v = self.inner.in_proj_weight.chunk(3)
        return {"q": [q], "k": [k], "v": [v], "o": [self.inner.out_proj.weight]}


KINDS = [Fused, Reversed, HeadByHead, Separate, Cached, Shared, Bare, BareFused, Summed, SummedPacked, Torchs]


def gain(matrix: Tensor) -> float:
    """The gain by which Xavier's deviation √(2 / (fan-in + fan-out)) was multiplied, from 9216 entries and more."""
    return float(matrix.detach().std()) * sqrt(sum(matrix.shape) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_t_fixup_draws_queries_and_keys_with_gain_one(kind: type[Network]) -> None:
    """With N = 1 layer the others have 0.67, whatever the names and the layout of the weights."""
    torch.manual_seed(0)
    model = kind()
    net: Any = nl.convert(model, "t_fixup", IDS)
    for use, matrices in net.parts().items():
        for matrix in matrices:
            assert gain(matrix) == pytest.approx(1.0 if use in "qk" else 0.67, rel=0.04), use
    for layer in (net.out, net.up, net.down):
        assert gain(layer.weight) == pytest.approx(0.67, rel=0.04)
    assert len(nl.plan(model, "t_fixup", IDS)) == len(net.normless.plan)


@pytest.mark.parametrize("kind", KINDS)
def test_fixup_scales_values_and_no_queries_and_keys(kind: type[Network]) -> None:
    """Two branches, one of m weight layers in series: L^(-1/(2m-2)); bare parameters are scaled as weights."""
    model = kind()
    before = model.parts()
    net: Any = nl.convert(model, "fixup(biases=False)", IDS)
    m = 2 + ("o" in before)
    for use, matrices in net.parts().items():
        for matrix, old in zip(matrices, before[use], strict=True):
            close(matrix, old * (1.0 if use in "qk" else 2 ** (-1 / (2 * m - 2))))
    assert not net.out.weight.any()


@pytest.mark.parametrize("kind", [Bare, BareFused, Summed, SummedPacked])
def test_a_scalar_bias_before_a_bare_parameter_is_refused_by_name(kind: type[Network]) -> None:
    name = next(name for name, own in kind().named_parameters() if "." not in name)
    where = f"fixup is not possible at {name} in the forward code of this "
    with pytest.raises(UnsupportedEditError, match=f"{where}.*biases=False"):
        nl.convert(kind(), "fixup", IDS)


class End(nn.Module):
    """A branch that ends in a parameter, and a parameter as the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.norm = nn.Linear(6, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.second, self.last = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x)
        h = h + self.first(self.norm(h)).relu() @ self.second
        return (h + self.first(h).relu() @ self.second) @ self.last if False else h @ self.last


def test_a_parameter_at_a_branchs_end_starts_at_zero() -> None:
    net: Any = nl.convert(End(), "fixup(biases=False)", torch.randn(4, 6))
    assert not net.second.any()
    assert not net.last.any()
    (total,) = (module for module in net.modules() if type(module).__name__ == "ResidualSum")
    assert float(total.multiplier.detach()) == 1


def test_a_parameter_is_drawn_by_its_inputs_and_outputs() -> None:
    """He's fan-out is the number of outputs, the last axis in x @ W."""

    class Wide(Network):
        def build(self) -> None:
            self.wide, self.back = (nn.Parameter(torch.zeros(WIDTH, n)) for n in (2048, 2048))

        def attend(self, z: Tensor) -> Tensor:
            return F.linear((z @ self.wide).relu(), self.back)

    net: Any = nl.convert(Wide(), nl.Scheme("he", (nl.edits.Reinitialize("he"),)), IDS)
    assert float(net.wide.detach().std()) == pytest.approx(sqrt(2 / 2048), rel=0.02)
    assert float(net.back.detach().std()) == pytest.approx(sqrt(2 / WIDTH), rel=0.02)


def test_no_attention_is_said() -> None:
    class Feed(Network):
        def attend(self, z: Tensor) -> Tensor:
            return z

    with pytest.raises(UnsupportedEditError, match="no branch has an attention, a softmax of products"):
        nl.convert(Feed(), "t_fixup", IDS)
