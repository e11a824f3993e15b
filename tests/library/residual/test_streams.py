"""Residual sums of activations that are split and joined, of several streams, and of learned tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

from normless import convert, residual_map

WIDTH = 8


def layers(forward: Callable[..., Any]) -> Written:
    """Linear layers f, g, h, k to write forward passes with, two norms, and a learned token."""
    norms = {"norm": nn.LayerNorm(WIDTH), "norm2": nn.LayerNorm(WIDTH)}
    token = nn.Parameter(torch.randn(1, 1, WIDTH))
    return Written(forward, **linear_layers("stem f g h k", WIDTH), **norms, token=token)


def test_parts_that_are_joined_anew_are_the_same_activation() -> None:
    """Two parts of a sequence, joined for the branch and joined again for the skip path."""

    def joined_anew(m: Written, x: Tensor) -> Tensor:
        first, second = m.stem(x).split(2, 1)
        y = m.norm(torch.cat((first, second), 1))
        x = m.g(m.f(y).relu()) + torch.cat((first, second), 1)
        first, second = x.split(2, 1)
        y = m.norm2(torch.cat((first, second), 1))
        return m.k(m.h(y).relu()) + torch.cat((first, second), 1)

    found = residual_map(layers(joined_anew), torch.randn(2, 4, WIDTH))
    assert [block.branch for block in found.blocks] == [("f", "g"), ("h", "k")]
    assert all(block.identity_skip for block in found.blocks)
    assert found.stem == ("stem",)
    assert found.norms == {"norm": "last", "norm2": "last"}


@pytest.mark.parametrize("is_random", [True, False])
def test_other_parts_or_random_numbers_are_no_identity(is_random: bool) -> None:
    """The same with a third part of random numbers that are drawn anew, or with the parts in another order."""

    def joined_otherwise(m: Written, x: Tensor) -> Tensor:
        parts = m.stem(x).split(2, 1)
        third = [torch.rand(2, 1, WIDTH)] * is_random
        y = m.g(m.f(torch.cat((*parts, *third), 1)).relu())
        third = [torch.rand(2, 1, WIDTH)] * is_random
        return y + torch.cat((*parts, *third) if is_random else parts[::-1], 1)

    found = residual_map(layers(joined_otherwise), torch.randn(2, 4, WIDTH))
    assert not any(block.identity_skip for block in found.blocks)


def attended(m: Written, token: Tensor, x: Tensor) -> Tensor:
    """A class token whose norm attends to itself and to what is made of the input (Touvron et al. 2021)."""
    y = m.norm(token)
    every = torch.cat((y, x), 1)
    return token + m.h(F.scaled_dot_product_attention(m.f(y), m.g(every), m.k(every)))


def test_a_learned_token_has_residual_sums_from_the_first_on() -> None:
    def class_attention(m: Written, x: Tensor) -> Tensor:
        x, token = m.stem(x), m.token.expand(2, -1, -1)
        return attended(m, attended(m, token, x), x)

    found = residual_map(layers(class_attention), torch.randn(2, 3, WIDTH))
    assert [set(block.branch) for block in found.blocks] == [{"f", "g", "k", "h"}] * 2
    assert found.stem == ("stem",)
    assert found.norms == {"norm": "last"}


def test_the_norm_of_a_token_is_removed_and_its_branch_begins_at_zero() -> None:
    net = layers(lambda m, x: attended(m, m.token.expand(2, -1, -1), m.stem(x)))
    new = convert(net, "skipinit", torch.randn(2, 3, WIDTH))
    torch.testing.assert_close(new(torch.randn(2, 3, WIDTH)), net.token.expand(2, -1, -1))
    assert isinstance(new.norm, nn.Identity)


def test_the_layers_of_a_joint_attention_are_each_on_the_branch_of_its_stream() -> None:
    """Two streams with query, key, value and output for each, and one attention over both (Esser et al. 2024)."""

    def joint(m: Written, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        image, text = m.image.stem(image), m.text.stem(text)
        streams = ((m.text, m.text.norm(text)), (m.image, m.image.norm(image)))
        q, k, v = (torch.cat([getattr(stream, name)(x) for stream, x in streams], 1) for name in "fgk")
        both = F.scaled_dot_product_attention(q, k, v)
        size = text.shape[1]
        return image + m.image.h(both[:, size:]), text + m.text.h(both[:, :size])

    model = Written(joint, image=layers(torch.relu), text=layers(torch.relu))
    found = residual_map(model, torch.randn(2, 5, WIDTH), torch.randn(2, 3, WIDTH))
    assert [set(block.branch) for block in found.blocks] == [
        {f"{stream}.{name}" for name in "fgkh"} for stream in ("image", "text")
    ]
    assert set(found.stem) == {"image.stem", "text.stem"}
    assert found.norms == {"image.norm": "last", "text.norm": "last"}


def test_a_fork_is_the_activation_whichever_view_the_skip_path_reads() -> None:
    """Δ computed from a view of x, D · x beside the scan of another view (Gu & Dao 2023)."""

    def state_space(m: Written, x: Tensor) -> Tensor:
        y = F.silu(m.f(x))
        across = y.mT
        step = F.softplus(m.h(m.g(y)))
        return m.k((torch.cumsum(step.mT * across, -1) + across * m.token.mT).mT)

    (block,) = residual_map(layers(state_space), torch.randn(2, 3, WIDTH)).blocks
    assert set(block.branch) == {"g", "h"}
    assert [layer.kind for layer in block.skip_layers] == ["scale"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_of_several_levels_is_longer_than_a_projection(kind: type[nn.RNNBase]) -> None:
    """A recurrent layer beside a linear layer with norm and activation (Supratak et al. 2017)."""

    def recurrent(levels: int) -> Written:
        return Written(
            lambda m, x: m.recurrent(y := m.stem(x))[0] + m.shortcut(y),
            stem=nn.Linear(WIDTH, WIDTH),
            recurrent=kind(WIDTH, WIDTH, num_layers=levels, batch_first=True),
            shortcut=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()),
        )

    (block,) = residual_map(recurrent(3), torch.randn(2, 4, WIDTH)).blocks
    assert (block.branch, block.skip, block.m) == (("recurrent",), ("shortcut.0",), 1)
    found = residual_map(recurrent(1), torch.randn(2, 4, WIDTH))
    assert found.blocks == ()
    assert len(found.unresolved) == 1, "of two paths of one layer none is the skip path"


def test_layers_beside_the_first_block_are_none_of_the_stem() -> None:
    """A residual and a transient stream that exchange what they have (Targ et al. 2016)."""

    def exchanged(m: Written, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        back, other = m.back(beside), m.to_other(x)
        return (m.own(x) + x + back).relu(), (m.transient(beside) + other).relu()

    def two_streams(m: Written, x: Tensor) -> Tensor:
        x, beside = m.first(x).relu(), m.second(x).relu()
        for unit in m.units:
            x, beside = unit(x, beside)
        return torch.cat((x, beside), 1)

    units = nn.ModuleList(Written(exchanged, **linear_layers("own to_other transient back", WIDTH)) for _ in range(2))
    model = Written(two_streams, **linear_layers("first second", WIDTH), units=units)
    found = residual_map(model, torch.randn(2, WIDTH))
    assert [block.branch for block in found.blocks] == [("units.0.own",), ("units.1.own",)]
    assert found.stem == ("first", "second")
    between = {layer.path for layer in found.trunk_layers if layer.kind == "weight"}
    assert {"units.0.back", "units.0.transient"} <= between


def test_a_sum_of_two_residual_sums_is_two_blocks() -> None:
    def sum_of_sums(m: Written, x: Tensor) -> Tensor:
        x = m.stem(x)
        return sum([x + m.g(m.f(x).relu()), x + m.k(m.h(x).relu())])  # type: ignore[return-value]

    found = residual_map(layers(sum_of_sums), torch.randn(2, WIDTH))
    assert [block.branch for block in found.blocks] == [("f", "g"), ("h", "k")]
    assert not any(block.inner for block in found.blocks)
