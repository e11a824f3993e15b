"""Maps of the reference networks, which bring example inputs: any size, both modes, before and after schemes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from normless import convert, residual_map
from normless.models import Transformer, dense, resnet, resnet_cifar, resnet_v2, transformer, wide_resnet

IMAGE, GRAY, VECTOR = (2, 3, 8, 8), (2, 1, 9, 11), (6, 30)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "wide 10-1": (lambda: wide_resnet(10, 1), IMAGE),
    "wide 16-2 gray": (lambda: wide_resnet(16, 2, in_channels=1), GRAY),
    "cifar 14 gray": (lambda: resnet_cifar(14, in_channels=1), GRAY),
    "dense linear 1": (lambda: dense(1, 20, in_features=30, relu=False), VECTOR),
    "dense 3×2": (lambda: dense(3, 20, in_features=30, branch_layers=2), VECTOR),
    "V1-18": (lambda: resnet(18), (2, 3, 33, 40)),
    "ResNeXt-50 gray": (lambda: resnet(50, in_channels=1, groups=32, width_per_group=4), (2, 1, 33, 40)),
    "V2-50": (lambda: resnet_v2(50), (2, 3, 33, 40)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_map_is_the_same_for_other_sizes_in_the_other_mode_and_without_values(name: str) -> None:
    build, shape = NETWORKS[name]
    found = residual_map(build())
    with torch.device("meta"):
        assert residual_map(build().eval(), torch.empty(shape)) == found


@pytest.mark.parametrize(
    ("name", "scheme"), [("V1-18", "zeroinit_v1(dropout=0.2)"), ("V2-50", "fixup"), ("wide 10-1", "skipinit")]
)
def test_also_after_conversion(name: str, scheme: str) -> None:
    build, shape = NETWORKS[name]
    net = convert(build(), scheme)
    assert residual_map(net) == residual_map(net, torch.randn(shape))


def test_a_network_1_000_layers_deep() -> None:
    found = residual_map(wide_resnet(1_000, 1))
    assert found.depth == 498
    assert found.blocks[-1].branch == ("blocks.497.conv1", "blocks.497.conv2")
    assert "458 more blocks" in str(found)


def small(norm: str, layers: int = 2, decoder_layers: int = 1, dropout: float = 0.1) -> Transformer:
    return transformer(20, layers, 8, 2, 12, norm, dropout, decoder_layers)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("layers", "decoder_layers", "dropout"), [(1, 1, 0.1), (3, 2, 0.0)])
def test_of_a_transformer(norm: str, layers: int, decoder_layers: int, dropout: float) -> None:
    model = small(norm, layers, decoder_layers, dropout)
    found = residual_map(model)
    assert found == residual_map(model.eval(), *(tokens.repeat(2, 2) for tokens in model.example_inputs()))
    assert found.depth == 2 * layers + 3 * decoder_layers
    assert {block.m for block in found.blocks} == {2}
    assert found.unresolved == ()


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
