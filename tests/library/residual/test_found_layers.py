"""Layers in forward code, modules of several names, tied and packed layers, beyond what the gallery states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

from normless import residual_map

WIDTH = 8


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(WIDTH))


class Block(nn.Module):
    """x + scale(second(activation(first(norm(x)))))."""

    def __init__(self, norm: nn.Module, activation: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.activation = activation or nn.ReLU()
        self.last = last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.second(self.activation(self.first(self.norm(x)))))


def test_a_norm_in_the_forward_code_is_named_by_its_gamma_and_a_scale_is_none() -> None:
    """Beside a plain scale and a normalization without γ."""

    def forward(m: Written, x: Tensor) -> Tensor:
        x = F.normalize(m.stem(x), dim=-1)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.g
        return x + m.f(y) * m.s

    found = residual_map(
        Written(forward, **linear_layers("stem f", WIDTH), g=ones(), s=ones()), torch.randn(2, WIDTH)
    )
    assert found.norms == {":g": "last"}
    assert found.by_path[":g"].gamma == "g"
    assert (found.by_path[":s"].kind, found.by_path[":s"].gamma) == ("scale", "s")


def test_calls_of_functions_are_described_by_the_function_without_the_graphs_number() -> None:
    inner = Written(lambda m, x: F.relu(x + m.last(F.relu(m.first(x)))), **linear_layers("first last", WIDTH))
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, 2))
    (block,) = residual_map(network, torch.randn(2, WIDTH)).blocks
    assert [layer.description for layer in (block.branch_layers[1], *block.after_sum)] == ["relu", "relu"]
    assert block.activations != (block.activation_after_sum,)


def test_a_module_of_several_names_goes_by_its_first() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    blocks = [Block(nn.Identity()), Block(nn.Identity())]
    for block in blocks:
        block.second = shared
    found = residual_map(nn.Sequential(*blocks), torch.randn(4, WIDTH))
    assert [block.branch for block in found.blocks] == [("0.first", "0.second"), ("1.first", "0.second")]
    assert [block.branch_layers[-1].call for block in found.blocks] == [0, 1]


def test_a_tied_output_layer_goes_by_its_own_name() -> None:
    words, head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20, bias=False)
    head.weight = words.weight
    parts = {"words": words, "block": Block(nn.LayerNorm(WIDTH)), "head": head}
    tied = Written(lambda m, tokens: m.head(m.block(m.words(tokens))), **parts)
    found = residual_map(tied, torch.zeros(2, 3, dtype=torch.int64))
    assert found.classifier == "head"
    assert found.by_path["head"].parameters == ("words.weight",)


@pytest.mark.parametrize(("norm_first", "training"), [(True, False), (False, True), (False, False)])
def test_packed_attention_is_two_weight_layers_also_where_torch_would_fuse_it(
    norm_first: bool, training: bool
) -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first),
        2,
        enable_nested_tensor=False,
    ).train(training)
    with torch.no_grad():
        found = residual_map(model, torch.randn(2, 5, WIDTH))
    attention, feed_forward = found.blocks[:2]
    assert attention.branch == ("layers.0.self_attn", "layers.0.self_attn.out_proj")
    assert feed_forward.branch == ("layers.0.linear1", "layers.0.linear2")
    assert [block.m for block in found.blocks] == [2, 2, 2, 2]
    assert found.norms == dict.fromkeys((f"layers.{i}.norm{j}" for i in (0, 1) for j in (1, 2)), "last")
    assert torch.backends.mha.get_fastpath_enabled()
