"""DeepNorm and T-Fixup on small transformers: the constants of the papers, the matrices they go to, refusals."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import altered, edited
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import DeepNorm, RemoveNorms, TFixup
from normless.nn import ResidualSum

WIDTH = 64


class Attention(nn.Module):
    """One head; queries, keys and values from matrices of their own or from one."""

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        if packed:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.packed = packed
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.qkv(x).chunk(3, -1) if self.packed else (self.query(x), self.key(memory), self.value(memory))
        return self.out(F.scaled_dot_product_attention(q, k, v))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.relu(self.linear1(x)))


class TransformerLayer(nn.Module):
    """Post-norm; the sums are modules."""

    def __init__(self, cross: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(packed), FeedForward()
        self.cross = Attention() if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3 if cross else 2))
        self.sums = nn.ModuleList(ResidualSum() for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.norms[0](self.sums[0](x, self.attention(x)))
        if self.cross is not None:
            x = self.norms[1](self.sums[1](x, self.cross(x, memory)))
        return self.norms[-1](self.sums[-1](x, self.feed_forward(x)))


class Encoder(nn.Module):
    def __init__(self, depth: int, packed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(2000, WIDTH, padding_idx=0)
        self.layers = nn.ModuleList(TransformerLayer(packed=packed) for _ in range(depth))
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x)
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h)


class EncoderDecoder(nn.Module):
    def __init__(self, encoder: int, decoder: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(2000, WIDTH)
        self.encoder = nn.ModuleList(TransformerLayer() for _ in range(encoder))
        self.decoder = nn.ModuleDict(
            {"tokens": nn.Embedding(2000, WIDTH), **{f"l{i}": TransformerLayer(cross=True) for i in range(decoder)}}
        )
        self.classifier = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory, h = self.tokens(x), self.decoder["tokens"](y)
        for layer in self.encoder:
            memory = layer(memory)
        for name, layer in self.decoder.items():
            h = h if name == "tokens" else layer(h, memory)
        return self.classifier(h)


TOKENS = torch.randint(1, 2000, (2, 7), generator=torch.Generator().manual_seed(0))


def gain(weight: Tensor) -> float:
    """The gain that Xavier's variance was scaled by, estimated from the entries (4096 and more: within 3%)."""
    return (weight.std() * sqrt(sum(weight.shape) / 2)).item()


def close(value: float | list[float]) -> Any:
    return pytest.approx(value, rel=0.05)


def check_layer(layer: TransformerLayer, beta: float, attention: Attention | None = None) -> None:
    attention = layer.attention if attention is None else attention
    assert [gain(one.weight) for one in (attention.query, attention.key)] == close([1.0] * 2)
    ends = (attention.value, attention.out, layer.feed_forward.linear1, layer.feed_forward.linear2)
    assert [gain(one.weight) for one in ends] == close([beta] * 4)
    assert not any(one.bias.any() for one in (attention.query, attention.key, *ends))


@pytest.mark.parametrize("depth", [1, 4])
def test_deepnorm_of_one_stack(depth: int) -> None:
    """N layers: α = (2N)^(1/4), β = (8N)^(-1/4); table 2, encoder-only."""
    model = Encoder(depth)
    net = edited(model, DeepNorm(), inputs=(TOKENS,))
    for layer in net.layers:
        assert [total.skip_factor for total in layer.sums] == pytest.approx([(2 * depth) ** 0.25] * 2, rel=1e-12)
        check_layer(layer, (8 * depth) ** -0.25)
    assert not any(name.startswith(("tokens", "classifier")) or "norms" in name for name in altered(model, net))


def test_deepnorm_is_the_norm_of_alpha_x_plus_branch() -> None:
    net = edited(Encoder(2), DeepNorm(), inputs=(TOKENS,))
    layer, x = net.layers[1], torch.randn(2, 7, WIDTH)
    h = layer.norms[0](4**0.25 * x + layer.attention(x))
    torch.testing.assert_close(layer(x), layer.norms[1](4**0.25 * h + layer.feed_forward(h)))


def test_deepnorm_of_an_encoder_and_a_decoder() -> None:
    n, m = 2, 3
    net = edited(EncoderDecoder(n, m), DeepNorm(), inputs=(TOKENS, TOKENS))
    for layer in net.encoder:
        alpha = 0.81 * (n**4 * m) ** (1 / 16)
        assert [total.skip_factor for total in layer.sums] == pytest.approx([alpha] * 2, rel=1e-12)
        check_layer(layer, 0.87 * (n**4 * m) ** (-1 / 16))
    for name, layer in net.decoder.items():
        if name != "tokens":
            assert [total.skip_factor for total in layer.sums] == pytest.approx([(3 * m) ** 0.25] * 3, rel=1e-12)
            check_layer(layer, (12 * m) ** -0.25)
            check_layer(layer, (12 * m) ** -0.25, layer.cross)


def test_packed_queries_keys_and_values_are_told_apart() -> None:
    net = edited(Encoder(2, packed=True), DeepNorm(), inputs=(TOKENS,))
    query, key, value = net.layers[0].attention.qkv.weight.chunk(3)
    assert [gain(query), gain(key)] == close([1.0] * 2)
    assert gain(value) == close(16**-0.25)


def test_t_fixup_of_one_stack() -> None:
    """0.67·N^(-1/4) on values, outputs and feed-forward; embeddings of deviation d^(-1/2)·(9N)^(-1/4)."""
    depth = 3
    net = edited(Encoder(depth), RemoveNorms(), TFixup(), inputs=(TOKENS,))
    for layer in net.layers:
        check_layer(layer, 0.67 * depth**-0.25)
        assert all(total.is_plain for total in layer.sums)
    assert net.tokens.weight[1:].std().item() == close(WIDTH**-0.5 * (9 * depth) ** -0.25)
    assert not net.tokens.weight[0].any()
    assert gain(net.classifier.weight) == pytest.approx(1, rel=0.15)
    assert not net.classifier.bias.any()
    assert not [module for module in net.modules() if isinstance(module, nn.LayerNorm)]


def test_t_fixup_of_an_encoder_and_a_decoder() -> None:
    net = edited(EncoderDecoder(2, 4), RemoveNorms(), TFixup(), inputs=(TOKENS, TOKENS))
    for layer in net.encoder:
        check_layer(layer, 0.67 * 2**-0.25)
    for name, layer in net.decoder.items():
        if name != "tokens":
            check_layer(layer, 36**-0.25)
            check_layer(layer, 36**-0.25, layer.cross)
    assert net.tokens.weight.std().item() == close(WIDTH**-0.5 * 18**-0.25)
    assert net.decoder["tokens"].weight.std().item() == close(WIDTH**-0.5 * 36**-0.25)


def test_a_table_that_is_the_classifier_too_is_drawn_as_a_table() -> None:
    model = Encoder(1)
    model.classifier = nn.Linear(WIDTH, 2000, bias=False)
    model.classifier.weight = model.tokens.weight
    net = edited(model, RemoveNorms(), TFixup(), inputs=(TOKENS,))
    assert net.classifier.weight is net.tokens.weight
    assert net.tokens.weight[1:].std().item() == close(WIDTH**-0.5 * 9**-0.25)


def test_a_stack_that_is_no_whole_layers_is_refused() -> None:
    model = EncoderDecoder(1, 1)
    model.decoder["l1"] = TransformerLayer()
    with pytest.raises(nl.UnsupportedEditError, match="a layer of the decoder was expected to have 3 residual sums"):
        edited(model, DeepNorm(), inputs=(TOKENS, TOKENS))
