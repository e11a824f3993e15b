"""Figures 2 and 5 of De & Smith, at smaller width than 1000 where noted."""

from __future__ import annotations

from math import pi

import numpy as np
import torch
from torch import Tensor, nn

import normless as nl
from normless.models import dense


class ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(torch.relu(self.norm(x)))


class ConvProbe(nn.Module):
    """Network c of appendix B, with 3×3 kernels (not stated in the paper)."""

    def __init__(self, blocks: int, width: int = 100) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False)
        for conv in (self.first, self.second):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        self.blocks = nn.Sequential(*(ConvBlock(width) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.second(torch.relu(self.norm(self.first(x)))))


def test_skipinit_figure_2a_linear_without_norm_doubles() -> None:
    """skipinit/figure-2 a: without normalization both variances double with every block; width 1000, batch 1000.

    A product of random matrices strays: the growth per block is compared, whose mean over 50 blocks is 2.00 ± 0.02.
    """
    table = nl.probe(nl.convert(dense(50, relu=False), "none"), torch.randn(1000, 100), ["signal"]).signal
    growth = (table["skip_variance"].iloc[-1] / table["skip_variance"].iloc[0]) ** (1 / 49)
    assert abs(growth - 2) < 0.02
    assert np.allclose(table["branch_variance"] / table["skip_variance"], 1, atol=0.12)


def test_skipinit_figure_2b_linear_with_norm_grows_linearly() -> None:
    """skipinit/figure-2 b: skip variance = moving variance = depth, squared moving mean near 0, branch near 1."""
    table = nl.probe(dense(50, 500, relu=False), torch.randn(500, 100), ["signal"]).signal
    assert np.allclose(table["skip_variance"] / table["block"], 1, atol=0.1)
    assert np.allclose(table["norm_variance"] / table["skip_variance"], 1, atol=1e-3)
    assert (table["norm_mean_square"] < 1e-6).all()
    assert np.allclose(table["branch_variance"], 1, atol=0.1)
    assert np.allclose(table["predicted_norm_variance"], table["norm_variance"], rtol=0.1)


def test_skipinit_figure_2c_convolutional_relu_with_norm() -> None:
    """skipinit/figure-2 c: skip variance linear, moving variance below it, squared moving mean proportional to depth.

    32 images of smoothed noise in place of 100 of CIFAR-10; 16 blocks of width 100.
    """
    images = nn.functional.avg_pool2d(torch.randn(32, 3, 34, 34), 3, 1) * 3
    table = nl.probe(ConvProbe(16), images, ["signal"]).signal
    depth = table["block"].to_numpy(float)
    line = np.polyfit(depth, table["skip_variance"], 1)
    assert np.allclose(table["skip_variance"], np.polyval(line, depth), rtol=0.15)
    assert 0.8 < line[0] < 1.2
    assert (table["norm_variance"] < 0.85 * table["skip_variance"]).all()
    share = table["norm_mean_square"] / table["skip_variance"]
    assert share.between(0.2, 0.5).all()
    assert np.allclose(table["predicted_norm_mean_square"], table["norm_mean_square"], rtol=0.15)
    assert np.allclose(table["predicted_skip_variance"], table["skip_variance"], rtol=0.1)


def test_skipinit_figure_5_dense_relu_with_norm() -> None:
    """skipinit/figure-5: skip variance d, branch 1, moving variance d(1-1/π), squared moving mean d/π."""
    table = nl.probe(dense(60, 1000), torch.randn(500, 100), ["signal"]).signal
    depth = table["block"]
    assert np.allclose(table["skip_variance"] / depth, 1, atol=0.1)
    assert np.allclose(table["branch_variance"], 1, atol=0.1)
    assert np.allclose(table["norm_variance"] / depth, 1 - 1 / pi, atol=0.05)
    assert np.allclose(table["norm_mean_square"] / depth, 1 / pi, atol=0.05)


def test_fixup_equation_1_doubles_and_its_cures_do_not() -> None:
    """fixup/equation-1: the squared norm grows as 2ˡ; with √½ it stays constant, with Fixup it stays that of x₀.

    He initialization after ReLU, two layers a branch; means of eight draws at width 300, accurate to 10%.
    """
    growths = {}
    for scheme in ("none", "sqrt2", "fixup"):
        ends = []
        for seed in range(8):
            torch.manual_seed(seed)
            table = nl.probe(
                nl.convert(dense(10, 300, branch_layers=2), scheme), torch.randn(100, 100), ["signal"]
            ).signal
            ends.append(np.log2(table["sum_second_moment"].iloc[-1] / table["skip_second_moment"].iloc[0]) / 10)
        growths[scheme] = float(np.mean(ends))
    assert abs(growths["none"] - 1) < 0.05
    assert abs(growths["sqrt2"]) < 0.05
    assert abs(growths["fixup"]) < 1e-6
