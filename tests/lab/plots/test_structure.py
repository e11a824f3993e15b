"""The figure of a network: every γ in the colour of its role, and every kind of skip path."""

from __future__ import annotations

from collections import Counter

from matplotlib.axes import Axes

from normless.models import wide_resnet
from normless.residual import residual_map
from normless_lab.plots._structure import blocks_on_trunk


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
