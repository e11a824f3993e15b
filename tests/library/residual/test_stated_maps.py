"""The maps that the reference networks state, held against what their dataflow shows, before and after schemes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normless import convert, residual_map
from normless.models import Transformer, dense, resnet, resnet_cifar, resnet_v2, transformer, wide_resnet
from normless.residual import traced_map

IMAGE, GRAY, VECTOR = (2, 3, 8, 8), (2, 1, 9, 11), (6, 30)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "wide 10-1": (lambda: wide_resnet(10, 1), IMAGE),
    "wide 16-2 gray": (lambda: wide_resnet(16, 2, in_channels=1), GRAY),
    "cifar 14 gray": (lambda: resnet_cifar(14, in_channels=1), GRAY),
    "dense linear 1": (lambda: dense(1, 20, in_features=30, relu=False), VECTOR),
    "dense 7": (lambda: dense(7, 20, in_features=30), VECTOR),
    "dense 3×2": (lambda: dense(3, 20, in_features=30, branch_layers=2), VECTOR),
    "V1-18": (lambda: resnet(18), (2, 3, 33, 40)),
    "V1-50": (lambda: resnet(50), (2, 3, 33, 40)),
    "ResNeXt-50 gray": (lambda: resnet(50, in_channels=1, groups=32, width_per_group=4), (2, 1, 33, 40)),
    "V2-50": (lambda: resnet_v2(50), (2, 3, 33, 40)),
}
OF_50 = [(name, text) for name in ("V1-50", "V2-50") for text in ("ghost_batch_norm(size=256)", "zeroinit", "fixup")]
CONVERTED = [("V1-18", "zeroinit_v1(dropout=0.2)"), *(pytest.param(*one, marks=pytest.mark.slow) for one in OF_50)]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", NETWORKS)
def test_stated_map_is_the_traced_one(name: str, training: bool) -> None:
    build, shape = NETWORKS[name]
    with torch.device("meta"):
        model, inputs = build().train(training), torch.empty(shape)
    assert residual_map(model) == traced_map(model, inputs)


@pytest.mark.parametrize(("name", "scheme"), CONVERTED)
def test_also_after_conversion(name: str, scheme: str) -> None:
    build, shape = NETWORKS[name]
    with torch.device("meta"):
        net, inputs = convert(build(), scheme), torch.empty(shape)
    assert residual_map(net) == traced_map(net, inputs)


def test_stated_map_of_a_network_1_000_layers_deep_needs_no_trace() -> None:
    with torch.device("meta"):
        found = residual_map(wide_resnet(1_000, 1))
    assert found.depth == 498
    assert found.blocks[-1].branch == ("blocks.497.conv1", "blocks.497.conv2")
    assert "458 more blocks" in str(found)


def small(norm: str, layers: int = 2, decoder_layers: int = 1, dropout: float = 0.1) -> Transformer:
    return transformer(20, layers, 8, 2, 12, norm, dropout, decoder_layers)  # type: ignore[arg-type]


@given(
    norm=st.sampled_from(["pre", "post"]),
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dropout=st.sampled_from([0.0, 0.1]),
    training=st.booleans(),
)
@settings(deadline=None, max_examples=8)
def test_stated_map_of_a_transformer(norm: str, layers: tuple[int, int], dropout: float, training: bool) -> None:
    model = small(norm, *layers, dropout).train(training)
    found = residual_map(model)
    assert found == traced_map(model, *model.example_inputs())
    assert found.depth == 2 * layers[0] + 3 * layers[1]
    assert {block.m for block in found.blocks} == {2}
    assert found.unresolved == ()


@pytest.mark.parametrize(
    ("norm", "scheme"),
    [("pre", "fixup"), ("post", "layer_scale"), ("post", "deepnorm"), ("post", "admin"), ("pre", "sqrt2")],
)
def test_of_a_transformer_also_after_conversion(norm: str, scheme: str) -> None:
    model = small(norm)
    net = convert(model, scheme, *model.example_inputs())
    assert residual_map(net) == traced_map(net, *net.example_inputs())


@pytest.mark.parametrize(
    ("norm", "query", "memory", "after"),
    [
        ("pre", "decoder.layers.0.cross_attention.norm", "encoder.norm", []),
        ("post", "decoder.layers.0.self_attention.norm", "encoder.layers.1.feed_forward.norm", ["norm"]),
    ],
)
def test_what_the_projections_of_a_cross_attention_read(norm: str, query: str, memory: str, after: list[str]) -> None:
    found = residual_map(small(norm))
    cross, attention = found.blocks[-2], "decoder.layers.0.cross_attention.attention"
    assert cross.branch == tuple(f"{attention}.{name}" for name in ("query", "key", "value", "output"))
    reads = {layer.path.rpartition(".")[2]: layer.input for layer in cross.branch_layers}
    assert (reads["query"], reads["key"], reads["value"]) == (query, memory, memory)
    assert reads["dropout"] == f"{attention}.output"
    assert [layer.path.rpartition(".")[2] for layer in cross.after_sum] == after
