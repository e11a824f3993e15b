"""Maps of the reference networks, which bring example inputs: any size, both modes, before and after schemes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from normless import residual_map
from normless.models import dense, resnet, resnet_cifar, wide_resnet

IMAGE, GRAY, VECTOR = (2, 3, 8, 8), (2, 1, 9, 11), (6, 30)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "wide 10-1": (lambda: wide_resnet(10, 1), IMAGE),
    "cifar 14 gray": (lambda: resnet_cifar(14, in_channels=1), GRAY),
    "dense 3×2": (lambda: dense(3, 20, in_features=30, branch_layers=2), VECTOR),
    "ResNeXt-50 gray": (lambda: resnet(50, in_channels=1, groups=32, width_per_group=4), (2, 1, 33, 40)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_map_is_the_same_for_other_sizes_in_the_other_mode_and_without_values(name: str) -> None:
    build, shape = NETWORKS[name]
    found = residual_map(build())
    with torch.device("meta"):
        assert residual_map(build().eval(), torch.empty(shape)) == found


def test_a_network_1_000_layers_deep() -> None:
    found = residual_map(wide_resnet(1_000, 1))
    assert found.depth == 498
    assert found.blocks[-1].branch == ("blocks.497.conv1", "blocks.497.conv2")
    assert "458 more blocks" in str(found)
