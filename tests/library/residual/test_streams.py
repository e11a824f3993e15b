"""Residual sums of activations that are split and joined, of several streams, and of learned tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
