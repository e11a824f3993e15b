"""The convolutional network of appendix B, for measurements at initialization."""

from __future__ import annotations

from torch import Tensor, nn

from normless.initialization import initialize
from normless.models import conv
from normless.nn import ResidualSum
from normless.residual import BlockStructure, Structure


class ConvolutionalBlock(nn.Module):
    """x + conv(relu(norm(x))). Shapes: (B, width, H, W) to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv = conv(width, width, 3)
        self.sum = ResidualSum()

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        total: Tensor = self.sum(x, self.conv(self.relu(self.norm(x))))
        return total


class ConvolutionalNetwork(nn.Module):
    """conv/2 → norm → ReLU → conv/2, then blocks (De & Smith, appendix B, the network of figure 2 c).

    Weights have He's variance 2 / fan-in. The paper gives no size of the kernels: they are 3×3 here, padded by zeros.
    It has no classifier.
    Shapes: (B, in_channels, H, W) to (B, width, ⌈H/4⌉, ⌈W/4⌉).
    """

    def __init__(self, blocks: int, width: int = 100, in_channels: int = 3) -> None:
        super().__init__()
        self.first, self.norm, self.relu = conv(in_channels, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU()
        self.second = conv(width, width, 3, 2)
        self.blocks = nn.Sequential(*(ConvolutionalBlock(width) for _ in range(blocks)))
        initialize(self, "he_fan_in")

    def forward(self, x: Tensor) -> Tensor:
        """The last block's output."""
        h: Tensor = self.blocks(self.second(self.relu(self.norm(self.first(x)))))
        return h

    def residual_structure(self) -> Structure:
        """Name the modules in execution order."""
        block = BlockStructure(branch=["norm", "relu", "conv"])
        return Structure(
            stem=["first", "norm", "relu", "second"],
            blocks=[(f"blocks.{index}", block) for index in range(len(self.blocks))],
            head=[],
        )
