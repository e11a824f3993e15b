"""The maps the reference networks state, held against what their dataflow shows."""

from __future__ import annotations

import pytest
import torch

from normless import residual_map
from normless.models import dense, resnet_cifar, wide_resnet
from normless.residual import traced_map

IMAGE = torch.zeros(2, 3, 8, 8)
GRAY = torch.zeros(2, 1, 9, 11)
VECTOR = torch.zeros(6, 30)

NETWORKS = {
    "wide 10-1": (lambda: wide_resnet(10, 1), IMAGE),
    "wide 16-2 gray": (lambda: wide_resnet(16, 2, in_channels=1), GRAY),
    "cifar 14 gray": (lambda: resnet_cifar(14, in_channels=1), GRAY),
    "dense linear 1": (lambda: dense(1, 20, in_features=30, relu=False), VECTOR),
    "dense 7": (lambda: dense(7, 20, in_features=30), VECTOR),
    "dense 3×2": (lambda: dense(3, 20, in_features=30, branch_layers=2), VECTOR),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_stated_map_is_the_traced_one(name: str, training: bool) -> None:
    build, inputs = NETWORKS[name]
    model = build().train(training)
    assert residual_map(model) == traced_map(model, inputs)


def test_stated_map_of_a_network_1_000_layers_deep_needs_no_trace() -> None:
    with torch.device("meta"):
        model = wide_resnet(1_000, 1)
    found = residual_map(model)
    assert found.depth == 498
    assert found.blocks[-1].branch == ("blocks.497.conv1", "blocks.497.conv2")
    assert "458 more blocks" in str(found)
