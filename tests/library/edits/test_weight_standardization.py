"""StandardizeWeights: which layers, with which gains, and what is refused."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch
from edit_helpers import added, altered, edited, images, removed, retyped
from torch import nn

import normless as nl
from normless.edits import BranchMultiplier, RemoveNorms, StandardizeWeights
from normless.models import resnet_cifar, wide_resnet
from normless.nn import ResidualSum

RELU = sqrt(2 / (1 - 1 / pi))


def test_every_convolution_and_not_the_classifier() -> None:
    model = wide_resnet(10, 1)
    net = edited(model, StandardizeWeights())
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert added(model, net) == {f"{name}.gain" for name in layers}
    assert not removed(model, net) | altered(model, net)
    assert retyped(model, net) == dict.fromkeys(layers, "ScaledStdConv2d")


def test_gains_of_the_activations_that_the_layers_read() -> None:
    net = edited(wide_resnet(10, 1), RemoveNorms(), StandardizeWeights())
    assert net.stem.scale == 1
    for block in net.blocks:
        assert [block.conv1.scale, block.conv2.scale] == pytest.approx([RELU, RELU], rel=1e-12)
    # Shared with the branch, the first ReLU feeds the skip path's convolution as well.
    assert [net.blocks[1].shortcut.scale, net.blocks[2].shortcut.scale] == pytest.approx([RELU, RELU], rel=1e-12)


def test_an_activation_on_the_stream_gives_no_gain() -> None:
    net = edited(resnet_cifar(8), RemoveNorms(), StandardizeWeights())
    assert [block.conv1.scale for block in net.blocks] == [1, 1, 1]
    assert [block.conv2.scale for block in net.blocks] == pytest.approx([RELU] * 3, rel=1e-12)


def test_a_multiplier_keeps_its_effect_before_and_behind() -> None:
    model, x = wide_resnet(10, 1), images()
    before = edited(model, RemoveNorms(), BranchMultiplier(0.5), StandardizeWeights())
    behind = edited(model, RemoveNorms(), StandardizeWeights(), BranchMultiplier(0.5))
    assert torch.equal(before(x), behind(x))
    assert not torch.equal(before(x), edited(model, RemoveNorms(), StandardizeWeights())(x))


class Depthwise(nn.Module):
    """x + conv(conv(x)), the first depthwise and of one position."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 1, groups=4)
        self.conv2 = nn.Conv2d(4, 4, 1)
        self.sum = ResidualSum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.sum(x, self.conv2(self.conv1(x)))
        return total


class Constant(Depthwise):
    """An activation between the convolutions that has no variance."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Threshold(100.0, 1.0))


def test_refusals() -> None:
    x = torch.randn(2, 4, 3, 3)
    with pytest.raises(nl.UnsupportedEditError, match="at conv1: each output reads one value"):
        edited(Depthwise(), StandardizeWeights(), inputs=(x,))
    with pytest.raises(nl.UnsupportedEditError, match=r"at conv1\.1: the activation is constant"):
        edited(Constant(), StandardizeWeights(), inputs=(x,))


def test_a_norm_that_holds_an_activation_is_refused() -> None:
    norm = pytest.importorskip("timm").layers.BatchNormAct2d(8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2))
    with pytest.raises(nl.UnsupportedEditError, match="at 1: an activation was part of this normalization"):
        edited(model, RemoveNorms(), StandardizeWeights(), inputs=(torch.randn(2, 3, 8, 8),))
