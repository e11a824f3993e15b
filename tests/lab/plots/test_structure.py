"""The figure of a network: every γ in the colour of its role, every kind of skip path, and a folded middle."""

from __future__ import annotations

from collections import Counter

import torch
from matplotlib.axes import Axes

from normless.models import wide_resnet
from normless.residual import Layer, ResidualBlock, ResidualMap, residual_map
from normless_lab.plots.structure import blocks_on_trunk


def _layers(path: str, kinds: str, gating: bool = False) -> tuple[Layer, ...]:
    """Layers named `path.0`, …: w weight, n norm, a activation, s scale, d dropout."""
    words = {"w": "weight", "n": "norm", "a": "activation", "s": "scale", "d": "dropout"}
    return tuple(
        Layer(f"{path}.{index}", words[kind], gating=gating, gamma=f"{path}.{index}.g" if kind == "n" else None)
        for index, kind in enumerate(kinds)
    )


def _marks(axes: Axes, label: str) -> list[tuple[float, float]]:
    lines = [line for line in axes.get_lines() if line.get_label() == label]
    return [(float(x), float(y)) for line in lines for x, y in line.get_xydata()]


def _arcs(axes: Axes) -> Counter[str]:
    return Counter(str(line.get_label()) for line in axes.get_lines() if str(line.get_label()).endswith("skip path"))


def _texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_every_layer_has_its_mark_and_every_skip_path_its_arc() -> None:
    found = residual_map(wide_resnet(16, 2))
    axes = blocks_on_trunk(found, title="WRN-16-2")
    counted = Counter(layer.kind for layer in found.layers())
    assert len(_marks(axes, "weight layer")) == counted["weight"]
    assert len(_marks(axes, "activation")) == counted["activation"]
    for role, count in Counter(found.norms.values()).items():
        assert len(_marks(axes, f"γ {role}")) == count
    assert len(_marks(axes, "_sum")) == 6
    assert _arcs(axes) == {"identity skip path": 3, "projecting skip path": 3}
    assert "6 residual blocks; γ: 6 last, 3 down, 4 other" in _texts(axes)
    assert {f"blocks.{index}" for index in range(6)} <= set(_texts(axes))


def test_blocks_inside_a_branch_are_lower_arcs_within() -> None:
    layers = _layers("f", "wnawnawn")
    innermost = ResidualBlock("b.1.1", layers[3:5])
    inner = ResidualBlock("b.1", layers[3:7], inner=(innermost,))
    axes = blocks_on_trunk(ResidualMap((ResidualBlock("b", layers, inner=(inner,)),)))
    arcs = [line.get_xydata() for line in axes.get_lines() if line.get_label() == "identity skip path"]
    assert len(arcs) == 3
    spans = sorted((arc[:, 0].min(), arc[:, 0].max(), arc[:, 1].max()) for arc in arcs)
    (left, right, high), (innermost_left, innermost_right, low), (inner_left, inner_right, middle) = spans
    assert left < inner_left == innermost_left < innermost_right < inner_right < right
    assert high > middle > low
    assert len(_marks(axes, "weight layer")) == 3


def test_many_layers_are_drawn_by_form_with_the_number_of_the_others() -> None:
    with torch.device("meta"):
        found = residual_map(wide_resnet(106, 1))
    axes = blocks_on_trunk(found)
    assert {"blocks.0", "16 more like it", "blocks.17", "blocks.18", "15 more like it"} <= set(_texts(axes))
    # A block at the start of each stage, one more in the stages that begin with a projection, and the rest folded.
    assert len(_marks(axes, "_sum")) == 5
    assert found.depth == 5 + 16 + 2 * 15
    assert _arcs(axes) == {"identity skip path": 3, "projecting skip path": 2}
