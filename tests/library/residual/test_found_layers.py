"""Norms, activations, layer scales and gains, found by what they compute; modules with several names and calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

from normless import residual_map

WIDTH = 8


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(WIDTH))


def hand_written_layer_norm() -> Written:
    def forward(m: Written, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * m.scale + m.shift

    return Written(forward, scale=ones(), shift=ones())


def hand_written_rms_norm() -> Written:
    """γ stored as its difference from 1."""
    return Written(
        lambda m, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + m.weight), weight=ones()
    )


def global_response_norm() -> Written:
    def forward(m: Written, x: Tensor) -> Tensor:
        size = x.norm(p=2, dim=1, keepdim=True)
        return m.gamma * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + m.beta + x

    return Written(forward, gamma=ones(), beta=ones())


def functional_layer_norm() -> Written:
    return Written(lambda m, x: F.layer_norm(x, (WIDTH,), m.weight, m.bias), weight=ones(), bias=ones())


class BiasOnly(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), None, self.bias)


def bias_only() -> nn.Module:
    return BiasOnly(WIDTH)


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


NORMS = {
    hand_written_layer_norm: "scale",
    hand_written_rms_norm: "weight",
    global_response_norm: "gamma",
    functional_layer_norm: "weight",
    lambda: nn.LayerNorm(WIDTH): "weight",
    lambda: nn.RMSNorm(WIDTH): "weight",
    lambda: nn.LayerNorm(WIDTH, elementwise_affine=False): None,
    bias_only: None,
}


@pytest.mark.parametrize("build", NORMS)
def test_norms_are_known_by_what_they_compute(build: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(build()))
    found = residual_map(model, torch.randn(2, 3, WIDTH))
    (block,) = found.blocks
    assert found.norms == {"1.norm": "last"}
    assert block.branch == ("1.first", "1.second")
    gamma = NORMS[build]
    assert found.by_path["1.norm"].gamma == (None if gamma is None else f"1.norm.{gamma}")
    named = {f"1.norm.{name}" for name, _ in model[1].norm.named_parameters()}
    assert set(found.by_path["1.norm"].parameters) == named - ({"1.norm.weight"} if gamma is None else set())


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


SWISH = Written(lambda m, x: x * torch.sigmoid(1.702 * x))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.PReLU(WIDTH), SWISH, nn.GELU(), nn.Hardtanh()])
def test_activations_are_known_by_what_they_compute(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(nn.Identity(), activation))
    (block,) = residual_map(model, torch.randn(4, WIDTH)).blocks
    assert block.activations == ("1.activation",)
    assert block.gates == ()


def test_calls_of_functions_are_described_by_the_function_without_the_graphs_number() -> None:
    inner = Written(lambda m, x: F.relu(x + m.last(F.relu(m.first(x)))), **linear_layers("first last", WIDTH))
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, 2))
    (block,) = residual_map(network, torch.randn(2, WIDTH)).blocks
    assert [layer.description for layer in (block.branch_layers[1], *block.after_sum)] == ["relu", "relu"]
    assert block.activations != (block.activation_after_sum,)


def test_layer_scale_and_dropout_end_a_branch_and_are_no_weights() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        Block(nn.Identity(), nn.Dropout(0.1), Written(lambda m, x: x * m.gamma, gamma=ones())),
    )
    (block,) = residual_map(model, torch.randn(4, WIDTH)).blocks
    assert [(one.path, one.kind) for one in block.branch_layers] == [
        ("1.first", "weight"), ("1.activation", "dropout"), ("1.second", "weight"), ("1.last", "scale"),
    ]  # fmt: skip
    assert block.branch_layers[-1].gamma == "1.last.gamma"
    assert not block.ends_in_layer


def test_gains_of_standardized_and_normalized_weights_are_gammas() -> None:
    class Standardized(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.gain = nn.Parameter(torch.ones(WIDTH, 1))

        def forward(self, x: Tensor) -> Tensor:
            weight = (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std(1, keepdim=True)
            return F.linear(x, weight * self.gain, self.bias)

    block = Block(nn.Identity())
    block.first = Standardized()
    block.second = nn.utils.parametrizations.weight_norm(block.second)
    found = residual_map(nn.Sequential(nn.Linear(WIDTH, WIDTH), block), torch.randn(4, WIDTH))
    assert found.blocks[0].branch == ("1.first", "1.second")
    assert found.by_path["1.first"].gamma == "1.first.gain"
    assert found.by_path["1.second"].gamma == "1.second.parametrizations.weight.original0"


def test_one_block_called_three_times_is_three_blocks_of_one_module() -> None:
    def recurrent(m: Written, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        for _ in range(3):
            x = m.block(x)
        return x

    found = residual_map(Written(recurrent, block=Block(nn.LayerNorm(WIDTH))), torch.randn(4, WIDTH))
    assert [block.name for block in found.blocks] == ["block#1", "block#2", "block#3"]
    assert [block.branch_layers[1].call for block in found.blocks] == [0, 1, 2]
    assert found.repeated == {"block.norm", "block.first", "block.activation", "block.second"}
    assert found.norms == {"block.norm": "last"}


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


def root_level(style: str) -> Written:
    """Blocks written at the root, where no module tells what belongs to which: post-norm, V1 or V2."""

    def forward(m: Written, x: Tensor) -> Tensor:
        x = m.stem(x)
        for norm, linear in zip(m.norms, m.layers, strict=False):
            if style == "post-norm":
                x = norm(x + linear(torch.relu(x)))
            elif style == "v1":
                x = torch.relu(x + norm(linear(x)))
            else:
                x = x + linear(torch.relu(norm(x)))
        return m.head(x if style == "v1" else torch.relu(m.norms[2](x)))

    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
    norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
    return Written(forward, **linear_layers("stem head", WIDTH), layers=layers, norms=norms)


def test_blocks_at_the_root_keep_what_follows_their_sums() -> None:
    x = torch.randn(4, WIDTH)
    post = residual_map(root_level("post-norm"), x)
    assert post.norms == {"norms.0": "last", "norms.1": "last", "norms.2": "other"}
    v1 = residual_map(root_level("v1"), x)
    assert v1.norms == {"norms.0": "last", "norms.1": "last"}
    assert all(block.activation_after_sum is not None for block in v1.blocks)
    v2 = residual_map(root_level("v2"), x)
    assert v2.norms == {"norms.0": "last", "norms.1": "last", "norms.2": "other"}
    assert all(block.after_sum == () for block in v2.blocks)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_batch_norms_group_norms_and_transposed_convolutions_of_every_dimension(dimensions: int) -> None:
    convolution = getattr(nn, f"Conv{dimensions}d")
    transposed = getattr(nn, f"ConvTranspose{dimensions}d")
    batch_norm, instance_norm = getattr(nn, f"BatchNorm{dimensions}d"), getattr(nn, f"InstanceNorm{dimensions}d")

    body = nn.Sequential(
        batch_norm(4), nn.ReLU(), convolution(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        transposed(4, 4, 3, padding=1), instance_norm(4, affine=True),
    )  # fmt: skip
    model = nn.Sequential(convolution(3, 4, 1), Written(lambda m, x: x + m.body(x), body=body))
    found = residual_map(model, torch.randn(2, 3, *([5] * dimensions)))
    assert found.blocks[0].branch == ("1.body.2", "1.body.5")
    assert found.norms == {"1.body.0": "other", "1.body.3": "other", "1.body.6": "last"}


def test_a_norm_of_several_operations_may_lie_on_a_skip_path() -> None:
    projecting = Written(
        lambda m, x: m.skip_norm(m.skip(x)) + m.second(m.first(x).relu()),
        **linear_layers("skip first second", WIDTH),
        skip_norm=hand_written_layer_norm(),
    )
    found = residual_map(nn.Sequential(nn.Linear(WIDTH, WIDTH), projecting), torch.randn(4, WIDTH))
    (block,) = found.blocks
    assert block.skip == ("1.skip",)
    assert found.norms == {"1.skip_norm": "down"}
