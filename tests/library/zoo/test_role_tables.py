"""The role of every γ, as tables written by hand from the definitions of the architectures.

`stem`: before the first block. `last`: the last norm of a branch, or the norm behind the sum where the branch has
none. `down`: on a skip path, or the pre-activation that a projecting block shares between branch and skip path.
"""

from __future__ import annotations

from collections import Counter

import pytest
import timm
import torch
import torchvision
from zoo_transformers import BUILDERS, SIZES

from normless import residual_map

IMAGES = torch.zeros(2, 3, 64, 64)


def basic_resnet(depths: tuple[int, ...]) -> dict[str, str]:
    """conv-bn1-relu-conv-bn2, then the sum; the first block of stages 2 to 4 projects."""
    roles = {"bn1": "stem"}
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            roles[f"layer{stage}.{block}.bn1"] = "other"
            roles[f"layer{stage}.{block}.bn2"] = "last"
        if stage > 1:
            roles[f"layer{stage}.0.downsample.1"] = "down"
    return roles


def bottleneck_resnet(depths: tuple[int, ...]) -> dict[str, str]:
    """conv-bn1-relu-conv-bn2-relu-conv-bn3, then the sum; the first block of every stage projects."""
    roles = {"bn1": "stem"}
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            roles[f"layer{stage}.{block}.bn1"] = "other"
            roles[f"layer{stage}.{block}.bn2"] = "other"
            roles[f"layer{stage}.{block}.bn3"] = "last"
        roles[f"layer{stage}.0.downsample.1"] = "down"
    return roles


def preactivation_resnet(depths: tuple[int, ...]) -> dict[str, str]:
    """norm1-conv-norm2-conv-norm3-conv, then the sum; no norm in the stem, one behind the last block.

    The first block of every stage projects what its norm1 gives, so that this norm lies before the fork.
    """
    roles = {"norm": "other"}
    for stage, depth in enumerate(depths):
        for block in range(depth):
            roles[f"stages.{stage}.blocks.{block}.norm1"] = "down" if block == 0 else "other"
            roles[f"stages.{stage}.blocks.{block}.norm2"] = "other"
            roles[f"stages.{stage}.blocks.{block}.norm3"] = "last"
    return roles


TORCHVISION = {
    "resnet18": (basic_resnet((2, 2, 2, 2)), {"stem": 1, "last": 8, "down": 3, "other": 8}),
    "resnet50": (bottleneck_resnet((3, 4, 6, 3)), {"stem": 1, "last": 16, "down": 4, "other": 32}),
    "resnext50_32x4d": (bottleneck_resnet((3, 4, 6, 3)), {"stem": 1, "last": 16, "down": 4, "other": 32}),
    "wide_resnet50_2": (bottleneck_resnet((3, 4, 6, 3)), {"stem": 1, "last": 16, "down": 4, "other": 32}),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    table, counts = TORCHVISION[name]
    found = residual_map(torchvision.models.get_model(name), IMAGES, strict=True).norms
    assert found == table
    assert Counter(found.values()) == counts


def test_preactivation() -> None:
    found = residual_map(timm.create_model("resnetv2_50"), IMAGES, strict=True).norms
    assert found == preactivation_resnet((3, 4, 6, 3))
    assert Counter(found.values()) == {"last": 16, "down": 4, "other": 12 + 16 + 1}


def test_post_norm_transformer() -> None:
    model, inputs = BUILDERS["bert"]()
    table = {"embeddings.LayerNorm": "stem"}
    for layer in range(SIZES["num_hidden_layers"]):
        table[f"encoder.layer.{layer}.attention.output.LayerNorm"] = "last"
        table[f"encoder.layer.{layer}.output.LayerNorm"] = "last"
    assert residual_map(model, strict=True, **inputs).norms == table


def test_pre_norm_transformer() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32)
    table = {"norm": "other"}
    for block in range(12):
        table[f"blocks.{block}.norm1"] = "last"
        table[f"blocks.{block}.norm2"] = "last"
    assert residual_map(model, torch.zeros(2, 3, 32, 32), strict=True).norms == table


def test_branches_side_by_side_each_have_a_last_norm() -> None:
    model = timm.create_model("vit_small_patch16_18x2_224", img_size=32, depth=3)
    found = residual_map(model, torch.zeros(2, 3, 32, 32), strict=True)
    table = {"norm": "other"}
    for block in range(3):
        for side in range(2):
            table[f"blocks.{block}.attns.{side}.norm"] = "last"
            table[f"blocks.{block}.ffns.{side}.norm"] = "last"
    assert found.norms == table
    assert [len(block.branches) for block in found.blocks] == [2] * 6
