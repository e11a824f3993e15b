"""DeepNorm and T-Fixup on small transformers: the constants of the papers, the matrices they go to, refusals."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import altered, edited
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from normless.edits import DeepNorm, RemoveNorms, TFixup
from normless.nn import ResidualSum

WIDTH = 64


def attention(*, packed: bool = False) -> nn.Module:
    """One head; queries, keys and values from matrices of their own or from one."""

    def forward(m: Written, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = m.qkv(x).chunk(3, -1) if packed else (m.query(x), m.key(memory), m.value(memory))
        return m.out(F.scaled_dot_product_attention(q, k, v))

    projections = {"qkv": nn.Linear(WIDTH, 3 * WIDTH)} if packed else linear_layers("query key value", WIDTH)
    return Written(forward, **projections, out=nn.Linear(WIDTH, WIDTH))


def feed_forward() -> nn.Module:
    layers = {"linear1": nn.Linear(WIDTH, 2 * WIDTH), "linear2": nn.Linear(2 * WIDTH, WIDTH)}
    return Written(lambda m, x: m.linear2(F.relu(m.linear1(x))), **layers)


def transformer_layer(*, cross: bool = False, packed: bool = False) -> nn.Module:
    """Post-norm; the sums are modules."""

    def forward(m: Written, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = m.norms[0](m.sums[0](x, m.attention(x)))
        if cross:
            x = m.norms[1](m.sums[1](x, m.cross(x, memory)))
        return m.norms[-1](m.sums[-1](x, m.feed_forward(x)))

    count, further = 3 if cross else 2, {"cross": attention()} if cross else {}
    norms, sums = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(count)), [ResidualSum() for _ in range(count)]
    parts = {"attention": attention(packed=packed), **further, "feed_forward": feed_forward()}
    return Written(forward, **parts, norms=norms, sums=nn.ModuleList(sums))


def encoder(depth: int, *, packed: bool = False) -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        h = m.tokens(x)
        for layer in m.layers:
            h = layer(h)
        return m.classifier(h)

    layers = nn.ModuleList(transformer_layer(packed=packed) for _ in range(depth))
    return Written(
        forward, tokens=nn.Embedding(2000, WIDTH, padding_idx=0), layers=layers, classifier=nn.Linear(WIDTH, 5)
    )


def encoder_decoder(depth: int, decoder_depth: int) -> nn.Module:
    def forward(m: Written, x: Tensor, y: Tensor) -> Tensor:
        memory, h = m.tokens(x), m.decoder["tokens"](y)
        for layer in m.encoder:
            memory = layer(memory)
        for name, layer in m.decoder.items():
            h = h if name == "tokens" else layer(h, memory)
        return m.classifier(h)

    stack = nn.ModuleList(transformer_layer() for _ in range(depth))
    layers = {f"l{index}": transformer_layer(cross=True) for index in range(decoder_depth)}
    decoder = nn.ModuleDict({"tokens": nn.Embedding(2000, WIDTH), **layers})
    tokens, classifier = nn.Embedding(2000, WIDTH), nn.Linear(WIDTH, 5)
    return Written(forward, tokens=tokens, encoder=stack, decoder=decoder, classifier=classifier)


TOKENS = torch.randint(1, 2000, (2, 7), generator=torch.Generator().manual_seed(0))


def gain(weight: Tensor) -> float:
    """The gain that Xavier's variance was scaled by, estimated from the entries (4096 and more: within 3%)."""
    return (weight.std() * sqrt(sum(weight.shape) / 2)).item()


def close(value: float | list[float]) -> Any:
    return pytest.approx(value, rel=0.05)


def check_layer(layer: nn.Module, beta: float, attention: nn.Module | None = None) -> None:
    attention = layer.attention if attention is None else attention
    assert [gain(one.weight) for one in (attention.query, attention.key)] == close([1.0] * 2)
    ends = (attention.value, attention.out, layer.feed_forward.linear1, layer.feed_forward.linear2)
    assert [gain(one.weight) for one in ends] == close([beta] * 4)
    assert not any(one.bias.any() for one in (attention.query, attention.key, *ends))


@pytest.mark.parametrize("depth", [1, 4])
def test_deepnorm_of_one_stack(depth: int) -> None:
    """N layers: α = (2N)^(1/4), β = (8N)^(-1/4); table 2, encoder-only."""
    model = encoder(depth)
    net = edited(model, DeepNorm(), inputs=(TOKENS,))
    for layer in net.layers:
        assert [total.skip_factor for total in layer.sums] == pytest.approx([(2 * depth) ** 0.25] * 2, rel=1e-12)
        check_layer(layer, (8 * depth) ** -0.25)
    assert not any(name.startswith(("tokens", "classifier")) or "norms" in name for name in altered(model, net))


def test_deepnorm_is_the_norm_of_alpha_x_plus_branch() -> None:
    net = edited(encoder(2), DeepNorm(), inputs=(TOKENS,))
    layer, x = net.layers[1], torch.randn(2, 7, WIDTH)
    h = layer.norms[0](4**0.25 * x + layer.attention(x))
    torch.testing.assert_close(layer(x), layer.norms[1](4**0.25 * h + layer.feed_forward(h)))


def test_deepnorm_of_an_encoder_and_a_decoder() -> None:
    n, m = 2, 3
    net = edited(encoder_decoder(n, m), DeepNorm(), inputs=(TOKENS, TOKENS))
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
    net = edited(encoder(2, packed=True), DeepNorm(), inputs=(TOKENS,))
    query, key, value = net.layers[0].attention.qkv.weight.chunk(3)
    assert [gain(query), gain(key)] == close([1.0] * 2)
    assert gain(value) == close(16**-0.25)


def test_t_fixup_of_one_stack() -> None:
    """0.67·N^(-1/4) on values, outputs and feed-forward; embeddings of deviation d^(-1/2)·(9N)^(-1/4)."""
    depth = 3
    net = edited(encoder(depth), RemoveNorms(), TFixup(), inputs=(TOKENS,))
    for layer in net.layers:
        check_layer(layer, 0.67 * depth**-0.25)
        assert all(total.is_plain for total in layer.sums)
    assert net.tokens.weight[1:].std().item() == close(WIDTH**-0.5 * (9 * depth) ** -0.25)
    assert not net.tokens.weight[0].any()
    assert gain(net.classifier.weight) == pytest.approx(1, rel=0.15)
    assert not net.classifier.bias.any()
    assert not [module for module in net.modules() if isinstance(module, nn.LayerNorm)]


def test_t_fixup_of_an_encoder_and_a_decoder() -> None:
    net = edited(encoder_decoder(2, 4), RemoveNorms(), TFixup(), inputs=(TOKENS, TOKENS))
    for layer in net.encoder:
        check_layer(layer, 0.67 * 2**-0.25)
    for name, layer in net.decoder.items():
        if name != "tokens":
            check_layer(layer, 36**-0.25)
            check_layer(layer, 36**-0.25, layer.cross)
    assert net.tokens.weight.std().item() == close(WIDTH**-0.5 * 18**-0.25)
    assert net.decoder["tokens"].weight.std().item() == close(WIDTH**-0.5 * 36**-0.25)


def test_a_table_that_is_the_classifier_too_is_drawn_as_a_table() -> None:
    model = encoder(1)
    model.classifier = nn.Linear(WIDTH, 2000, bias=False)
    model.classifier.weight = model.tokens.weight
    net = edited(model, RemoveNorms(), TFixup(), inputs=(TOKENS,))
    assert net.classifier.weight is net.tokens.weight
    assert net.tokens.weight[1:].std().item() == close(WIDTH**-0.5 * 9**-0.25)


def test_a_stack_that_is_no_whole_layers_is_refused() -> None:
    model = encoder_decoder(1, 1)
    model.decoder["l1"] = transformer_layer()
    with pytest.raises(nl.UnsupportedEditError, match="a layer of the decoder was expected to have 3 residual sums"):
        edited(model, DeepNorm(), inputs=(TOKENS, TOKENS))
