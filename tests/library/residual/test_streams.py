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


def test_the_norm_of_a_token_is_removed_and_its_branch_begins_at_zero() -> None:
    net = layers(lambda m, x: attended(m, m.token.expand(2, -1, -1), m.stem(x)))
    new = convert(net, "skipinit", torch.randn(2, 3, WIDTH))
    torch.testing.assert_close(new(torch.randn(2, 3, WIDTH)), net.token.expand(2, -1, -1))
    assert isinstance(new.norm, nn.Identity)


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
