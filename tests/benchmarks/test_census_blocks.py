"""What the census takes for the blocks of the original in a converted network."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from benchmarks.census.checks import same_blocks


class Reparametrized(nn.Module):
    """A norm side by side with a layer (RepVGG, Ding et al. 2021), outside any residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.identity, self.conv, self.bn = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.identity(x) + self.bn(self.conv(x)))


class Residual(nn.Module):
    """x + bn(conv(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bn(self.conv(x))


def test_what_is_left_of_a_norm_beside_a_layer_is_no_other_block() -> None:
    images = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Reparametrized(), Residual())
    before = nl.residual_map(model, images)
    after = nl.residual_map(nl.convert(model, "skipinit(alpha=1)", images), images)
    assert [one.name for one in before.blocks] == ["3"]
    assert [one.name for one in after.blocks] == ["2", "3"]
    assert same_blocks(after, before) == ""
    assert same_blocks(before, replace(before, blocks=())) == "1 blocks, the original has 0"
