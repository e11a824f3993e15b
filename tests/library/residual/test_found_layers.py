"""Layers in forward code, modules of several names, tied and packed layers, beyond what the gallery states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

from normless import residual_map
from normless.residual import Layer, ResidualBlock, ResidualMap

WIDTH = 8
SEQUENCE = torch.randn(2, 3, WIDTH)


def written(forward: Callable[..., Any], names: str, **parts: Any) -> Written:
    return Written(forward, **linear_layers(names, WIDTH), **parts)


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(WIDTH))


def test_norm_behind_the_sum_of_a_norm_free_branch_is_last() -> None:
    branch = (Layer("f", "weight"),)
    post = ResidualBlock("b", branch_layers=branch, after_sum=(Layer("n", "norm"),))
    both = ResidualBlock("c", branch_layers=(*branch, Layer("m", "norm")), after_sum=(Layer("o", "norm"),))
    assert ResidualMap((post, both)).norms == {"n": "last", "m": "last", "o": "other"}


def test_a_norm_in_the_forward_code_is_named_by_its_gamma_and_a_scale_is_none() -> None:
    """Beside a plain scale and a normalization without γ."""

    def forward(m: Written, x: Tensor) -> Tensor:
        x = F.normalize(m.stem(x), dim=-1)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.g
        return x + m.f(y) * m.s

    found = residual_map(written(forward, "stem f", g=ones(), s=ones()), SEQUENCE[0])
    assert found.norms == {":g": "last"}
    assert found.by_path[":g"].gamma == "g"
    assert (found.by_path[":s"].kind, found.by_path[":s"].gamma) == ("scale", "s")


@pytest.mark.parametrize(("norm_first", "training"), [(True, False), (False, True), (False, False)])
def test_packed_attention_is_two_weight_layers_also_where_torch_would_fuse_it(
    norm_first: bool, training: bool
) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    with torch.no_grad():
        found = residual_map(model, SEQUENCE)
    attention, feed_forward = found.blocks[:2]
    assert attention.branch == ("layers.0.self_attn", "layers.0.self_attn.out_proj")
    assert feed_forward.branch == ("layers.0.linear1", "layers.0.linear2")
    assert [block.m for block in found.blocks] == [2, 2, 2, 2]
    assert found.norms == dict.fromkeys((f"layers.{i}.norm{j}" for i in (0, 1) for j in (1, 2)), "last")
    assert torch.backends.mha.get_fastpath_enabled()


def of_two_layers(m: Any, x: Tensor) -> Tensor:
    """Two branches beside a skip path that is joined from two calls of a layer."""
    x = m.stem(x)
    skip = m.norm(torch.cat((m.h(x)[..., :4], m.h(x.roll(1, 1))[..., 4:]), 2))
    return 0.3 * m.g(m.f(x).relu()) + 0.7 * m.f(m.g(x).relu()) + skip  # type: ignore[no-any-return]


def cross(m: Any, x: Tensor, memory: Tensor = SEQUENCE) -> Tensor:
    """The values of an attention to something else belong to the branch."""
    x = m.stem(x)
    return x + m.h(torch.softmax(m.f(x) @ memory.mT, -1) @ m.g(memory)) + 0 * memory.sum()  # type: ignore[no-any-return]


def embedded(m: Any, tokens: Tensor) -> Tensor:
    """Embeddings of tokens and of their positions share no activation."""
    x = m.words(tokens) + m.places((tokens != 1).cumsum(-1))
    return x + m.f(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("forward", "inputs", "branches", "skip"),
    [
        (of_two_layers, (SEQUENCE,), [["f", "g"], ["g", "f"]], {"h"}),
        (cross, (SEQUENCE, torch.randn(2, 4, WIDTH)), [["f", "g", "h"]], set()),
        (embedded, (torch.zeros(2, 4, dtype=torch.int64),), [["f"]], set()),
    ],
)
def test_branches_and_skip_paths_of_unusual_sums(
    forward: Callable[..., Any], inputs: tuple[Tensor, ...], branches: list[list[str]], skip: set[str]
) -> None:
    parts = {"norm": nn.LayerNorm(WIDTH), "words": nn.Embedding(9, WIDTH), "places": nn.Embedding(9, WIDTH)}
    (block,) = residual_map(written(forward, "stem f g h", **parts), *inputs).blocks
    found = [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches]
    assert found == branches
    assert {*block.skip} == skip
    assert block.m == min(2, len(branches[0]))
