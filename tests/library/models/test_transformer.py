"""The transformer against torch's own layers, with its masks and its cache."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from normless.models import Transformer, transformer
from normless.models._transformer import Attention

Norm = Literal["pre", "post"]
VOCABULARY, WIDTH, HEADS, HIDDEN = 23, 12, 3, 20
NORMS = st.sampled_from(["pre", "post"])


def small(norm: Norm = "post", layers: int = 2, decoder_layers: int = 3, dropout: float = 0.0) -> Transformer:
    """In float64, with noise on every parameter, so that no zero hides a mistake."""
    model = transformer(VOCABULARY, layers, WIDTH, HEADS, HIDDEN, norm, dropout, decoder_layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def words(*shape: int) -> Tensor:
    return torch.randint(1, VOCABULARY, shape)


def copied(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    theirs.in_proj_weight.data = torch.cat([ours.query.weight, ours.key.weight, ours.value.weight])
    theirs.in_proj_bias.data = torch.cat([ours.query.bias, torch.zeros(WIDTH).double(), ours.value.bias])
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def reference(model: Any) -> tuple[Any, Any]:
    """torch's encoder and decoder with the model's weights."""
    first = model.encoder.norm is not None
    sizes: Any = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0}
    sizes |= {"batch_first": True, "norm_first": first, "dtype": torch.float64}
    last = [nn.LayerNorm(WIDTH).double() if first else None for _ in range(2)]
    encoder: Any = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**sizes), len(model.encoder.layers), last[0], enable_nested_tensor=False
    )
    decoder: Any = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), len(model.decoder.layers), last[1])
    for theirs, ours in ((encoder, model.encoder), (decoder, model.decoder)):
        for layer, own in zip(theirs.layers, ours.layers, strict=True):
            copied(layer.self_attn, own.self_attention.attention)
            blocks = [own.self_attention, own.feed_forward]
            if theirs is decoder:
                copied(layer.multihead_attn, own.cross_attention.attention)
                blocks.insert(1, own.cross_attention)
            for number, block in enumerate(blocks, 1):
                layer.get_submodule(f"norm{number}").load_state_dict(block.norm.state_dict())
            for name in ("linear1", "linear2"):
                layer.get_submodule(name).load_state_dict(own.feed_forward.get_submodule(name).state_dict())
        if first:
            theirs.norm.load_state_dict(ours.norm.state_dict())
    return encoder, decoder


def embedded(table: Tensor, tokens: Tensor) -> Tensor:
    def position(place: int, feature: int) -> float:
        angle = place / 10000 ** (2 * (feature // 2) / WIDTH)
        return math.cos(angle) if feature % 2 else math.sin(angle)

    places = [[position(place, feature) for feature in range(WIDTH)] for place in range(tokens.shape[1])]
    return table[tokens] * math.sqrt(WIDTH) + torch.tensor(places, dtype=torch.float64)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_logits_and_gradients_are_those_of_torchs_layers(norm: Norm) -> None:
    model: Any = small(norm)
    encoder, decoder = reference(model)
    source, target = words(4, 7), words(4, 5)
    source[1, 4:], source[3, 2:] = 0, 0
    table = model.embedding.weight.detach().clone().requires_grad_()
    padded = source == 0
    memory = encoder(embedded(table, source), src_key_padding_mask=padded)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    states = decoder(embedded(table, target), memory, tgt_mask=later, memory_key_padding_mask=padded)
    expected = states @ table.T
    actual = model(source, target)
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)  # positions are computed in float32
    labels = words(4, 5)
    F.cross_entropy(expected.flatten(0, 1), labels.flatten()).backward()
    F.cross_entropy(actual.flatten(0, 1), labels.flatten()).backward()
    ours = model.encoder.layers[0].self_attention, model.decoder.layers[1].cross_attention
    pairs = {
        "table": (model.embedding.weight.grad[1:], table.grad[1:]),
        "value": (ours[0].attention.value.weight.grad, encoder.layers[0].self_attn.in_proj_weight.grad[2 * WIDTH :]),
        "key": (
            ours[1].attention.key.weight.grad,
            decoder.layers[1].multihead_attn.in_proj_weight.grad[WIDTH : 2 * WIDTH],
        ),
        "norm": (model.decoder.layers[2].feed_forward.norm.weight.grad, decoder.layers[2].norm3.weight.grad),
        "hidden": (model.encoder.layers[1].feed_forward.linear1.weight.grad, encoder.layers[1].linear1.weight.grad),
    }
    for name, (found, wanted) in pairs.items():
        assert wanted.any(), name
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7, msg=name)


@given(norm=NORMS, steps=st.lists(st.integers(1, 4), min_size=1, max_size=5))
@settings(deadline=None, max_examples=20)
def test_cached_decoding_equals_the_uncached(norm: Norm, steps: list[int]) -> None:
    model = small(norm)
    source, target = words(3, 5), words(3, sum(steps))
    source[0, 3:] = 0
    memory = model.encode(source)
    logits, cache = [], None
    for tokens in target.split(steps, 1):
        new, cache = model.decode(tokens, memory, cache)
        logits.append(new)
    torch.testing.assert_close(torch.cat(logits, 1), model(source, target), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_row_of_padding_alone_is_finite_and_harms_no_other(norm: Norm) -> None:
    model, source, target = small(norm), words(3, 5), words(3, 4)
    source[1] = 0
    logits = model(source, target)
    torch.testing.assert_close(logits[::2], model(source[::2], target[::2]))
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
