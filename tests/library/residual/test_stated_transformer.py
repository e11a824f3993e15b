"""The map that the transformer states, held against what its dataflow shows, and against a count by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normless import convert, residual_map
from normless.models import Transformer, transformer
from normless.residual import traced_map

CONVERTED = [("pre", "fixup"), ("post", "layer_scale"), ("post", "deepnorm"), ("post", "admin"), ("pre", "sqrt2")]


def small(norm: str, layers: int = 2, decoder_layers: int = 1, dropout: float = 0.1) -> Transformer:
    return transformer(20, layers, 8, 2, 12, norm, dropout, decoder_layers)  # type: ignore[arg-type]


@given(
    norm=st.sampled_from(["pre", "post"]),
    layers=st.integers(1, 3),
    decoder_layers=st.integers(1, 3),
    dropout=st.sampled_from([0.0, 0.1]),
    training=st.booleans(),
)
@settings(deadline=None, max_examples=8)
def test_stated_map_is_the_traced_one(
    norm: str, layers: int, decoder_layers: int, dropout: float, training: bool
) -> None:
    model = small(norm, layers, decoder_layers, dropout).train(training)
    found = residual_map(model)
    assert found == traced_map(model, *model.example_inputs())
    assert found.depth == 2 * layers + 3 * decoder_layers
    assert {block.m for block in found.blocks} == {2}
    assert found.unresolved == ()


@pytest.mark.parametrize(("norm", "scheme"), CONVERTED)
def test_also_after_conversion(norm: str, scheme: str) -> None:
    model = small(norm)
    net = convert(model, scheme, *model.example_inputs())
    assert residual_map(net) == traced_map(net, *net.example_inputs())


def test_every_part_of_a_pre_norm_map() -> None:
    found = residual_map(small("pre", 1, 1))
    encoder, _, own, cross, feed_forward = found.blocks
    attention = "decoder.layers.0.cross_attention.attention"
    assert [block.name for block in (encoder, own, cross, feed_forward)] == [
        "encoder.layers.0.self_attention",
        "decoder.layers.0.self_attention",
        "decoder.layers.0.cross_attention",
        "decoder.layers.0.feed_forward",
    ]
    assert cross.branch == tuple(f"{attention}.{name}" for name in ("query", "key", "value", "output"))
    assert cross.gates == ("decoder.layers.0.cross_attention.norm", f"{attention}.query", f"{attention}.key")
    reads = {layer.path.rpartition(".")[2]: layer.input for layer in cross.branch_layers}
    assert reads == {
        "norm": None,
        "query": "decoder.layers.0.cross_attention.norm",
        "key": "encoder.norm",
        "value": "encoder.norm",
        "output": None,
        "dropout": f"{attention}.output",
    }
    assert [layer.path for layer in found.stem_layers] == ["encoder.dropout"]
    assert [layer.path for layer in found.trunk_layers] == ["encoder.norm", "decoder.dropout"]
    assert found.classifier == "classifier"
    roles = found.norms
    assert {roles.pop("encoder.norm"), roles.pop("decoder.norm")} == {"other"}
    assert set(roles.values()) == {"last"}
    assert len(roles) == 5


def test_norms_behind_the_sums_are_last_and_feed_all_three_projections() -> None:
    found = residual_map(small("post", 2, 1, dropout=0.0))
    assert set(found.norms.values()) == {"last"}
    cross = found.blocks[-2]
    assert {layer.path.rpartition(".")[2]: layer.input for layer in cross.branch_layers} == {
        "query": "decoder.layers.0.self_attention.norm",
        "key": "encoder.layers.1.feed_forward.norm",
        "value": "encoder.layers.1.feed_forward.norm",
        "output": None,
    }
    assert [layer.path for layer in cross.after_sum] == ["decoder.layers.0.cross_attention.norm"]
    assert found.classifier == "classifier"
