"""Norms, activations, layer scales and gains, found by what they compute; modules with several names and calls."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from normless import ResidualMap, residual_map
from normless.residual import Layer

WIDTH = 8


def layer(found: ResidualMap, path: str) -> Layer:
    return found.by_path[path]


class HandWrittenLayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift


class HandWrittenRMSNorm(nn.Module):
    """γ stored as its difference from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class GlobalResponseNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(p=2, dim=1, keepdim=True)
        return self.gamma * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.beta + x


class FunctionalLayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.weight, self.bias)


class BiasOnly(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), None, self.bias)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


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
    HandWrittenLayerNorm: "scale",
    HandWrittenRMSNorm: "weight",
    GlobalResponseNorm: "gamma",
    FunctionalLayerNorm: "weight",
    lambda: nn.LayerNorm(WIDTH): "weight",
    lambda: nn.RMSNorm(WIDTH): "weight",
    lambda: nn.LayerNorm(WIDTH, elementwise_affine=False): None,
    lambda: BiasOnly(WIDTH): None,
}


@pytest.mark.parametrize("build", NORMS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_norms_are_known_by_what_they_compute(build: type[nn.Module], training: bool) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(build()))
    found = residual_map(model.train(training), torch.randn(2, 3, WIDTH))
    (block,) = found.blocks
    assert found.norms == {"1.norm": "last"}
    assert block.branch == ("1.first", "1.second")
    gamma = NORMS[build]
    assert layer(found, "1.norm").gamma == (None if gamma is None else f"1.norm.{gamma}")
    named = {f"1.norm.{name}" for name, _ in model[1].norm.named_parameters() if build is not BiasOnly}
    assert set(layer(found, "1.norm").parameters) == named - ({"1.norm.weight"} if gamma is None else set())


def test_frozen_batch_norm_normalizes_and_learns_nothing() -> None:
    model = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d)
    found = residual_map(model, torch.zeros(1, 3, 64, 64))
    expected = residual_map(torchvision.models.resnet18(), torch.zeros(1, 3, 64, 64))
    assert found.norms == expected.norms
    assert all(found.by_path[path].gamma is None for path in found.norms)


class InlineNorm(nn.Module):
    """A norm written out in the forward of a bigger module, beside a plain scale and a normalization without γ."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.f = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.g, self.s = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.stem(x), dim=-1)
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g
        return x + self.f(y) * self.s


def test_a_norm_in_the_forward_code_is_named_by_its_gamma_and_a_scale_is_none() -> None:
    found = residual_map(InlineNorm(), torch.randn(2, WIDTH))
    assert found.norms == {":g": "last"}
    assert layer(found, ":g").gamma == "g"
    assert layer(found, ":s").kind == "scale"
    assert layer(found, ":s").gamma == "s"


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.PReLU(WIDTH), Swish(), nn.GELU(), nn.Hardtanh()])
def test_activations_are_known_by_what_they_compute(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(nn.Identity(), activation))
    (block,) = residual_map(model, torch.randn(4, WIDTH)).blocks
    assert block.activations == ("1.activation",)
    assert block.gates == ()


class Functional(nn.Module):
    """Two calls of one function in a module: the graph numbers them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.last(F.relu(self.first(x))))


def test_calls_of_functions_are_described_by_the_function_without_the_graphs_number() -> None:
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), Functional(), nn.Linear(WIDTH, 2))
    (block,) = residual_map(network, torch.randn(2, WIDTH)).blocks
    assert [one.description for one in (block.branch_layers[1], *block.after_sum)] == ["relu", "relu"]
    assert block.activations != (block.activation_after_sum,)


def test_layer_scale_and_dropout_end_a_branch_and_are_no_weights() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(nn.Identity(), nn.Dropout(0.1), Scale()))
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
    assert layer(found, "1.first").gamma == "1.first.gain"
    assert layer(found, "1.second").gamma == "1.second.parametrizations.weight.original0"


def test_one_block_called_three_times_is_three_blocks_of_one_module() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block(nn.LayerNorm(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(x)
            for _ in range(3):
                x = self.block(x)
            return x

    found = residual_map(Recurrent(), torch.randn(4, WIDTH))
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
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, WIDTH)
            self.block = Block(nn.LayerNorm(WIDTH))
            self.head = nn.Linear(WIDTH, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.block(self.words(tokens)))

    found = residual_map(Tied(), torch.zeros(2, 3, dtype=torch.int64))
    assert found.classifier == "head"
    assert layer(found, "head").parameters == ("words.weight",)


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
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


class RootLevel(nn.Module):
    """Blocks written at the root, where no module tells what belongs to which: post-norm, V1 or V2."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, linear in zip(self.norms, self.layers, strict=False):
            if self.style == "post-norm":
                x = norm(x + linear(torch.relu(x)))
            elif self.style == "v1":
                x = torch.relu(x + norm(linear(x)))
            else:
                x = x + linear(torch.relu(norm(x)))
        return self.head(x if self.style == "v1" else torch.relu(self.norms[2](x)))


def test_blocks_at_the_root_keep_what_follows_their_sums() -> None:
    x = torch.randn(4, WIDTH)
    post = residual_map(RootLevel("post-norm"), x)
    assert post.norms == {"norms.0": "last", "norms.1": "last", "norms.2": "other"}
    v1 = residual_map(RootLevel("v1"), x)
    assert v1.norms == {"norms.0": "last", "norms.1": "last"}
    assert all(block.activation_after_sum is not None for block in v1.blocks)
    v2 = residual_map(RootLevel("v2"), x)
    assert v2.norms == {"norms.0": "last", "norms.1": "last", "norms.2": "other"}
    assert all(block.after_sum == () for block in v2.blocks)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_batch_norms_group_norms_and_transposed_convolutions_of_every_dimension(dimensions: int) -> None:
    convolution = getattr(nn, f"Conv{dimensions}d")
    transposed = getattr(nn, f"ConvTranspose{dimensions}d")
    batch_norm, instance_norm = getattr(nn, f"BatchNorm{dimensions}d"), getattr(nn, f"InstanceNorm{dimensions}d")

    class ConvolutionBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                batch_norm(4), nn.ReLU(), convolution(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
                transposed(4, 4, 3, padding=1), instance_norm(4, affine=True),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            return x + self.body(x)

    model = nn.Sequential(convolution(3, 4, 1), ConvolutionBlock())
    found = residual_map(model, torch.randn(2, 3, *([5] * dimensions)))
    assert found.blocks[0].branch == ("1.body.2", "1.body.5")
    assert found.norms == {"1.body.0": "other", "1.body.3": "other", "1.body.6": "last"}


def test_a_norm_of_several_operations_may_lie_on_a_skip_path() -> None:
    class Projecting(Block):
        def __init__(self) -> None:
            super().__init__(nn.Identity())
            self.skip, self.skip_norm = nn.Linear(WIDTH, WIDTH), HandWrittenLayerNorm()

        def forward(self, x: Tensor) -> Tensor:
            return self.skip_norm(self.skip(x)) + self.second(self.activation(self.first(x)))

    found = residual_map(nn.Sequential(nn.Linear(WIDTH, WIDTH), Projecting()), torch.randn(4, WIDTH))
    (block,) = found.blocks
    assert block.skip == ("1.skip",)
    assert found.norms == {"1.skip_norm": "down"}
