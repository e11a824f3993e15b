"""The original ResNet for CIFAR (He et al. 2016, section 4.2), the network of Fixup and of Understanding BN."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, Block, BlockNetwork, GlobalAveragePool, blocks_per_stage, conv, stages
from normless.nn import ResidualSum


class PaddedShortcut(nn.Module):
    """Skip path of option A: every second position, missing channels filled with zeros; no parameters.

    Shapes: (B, in, H, W) to (B, out, ⌈H/2⌉, ⌈W/2⌉).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        before = (outputs - inputs) // 2
        self.padding = (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], self.padding)


class BasicBlock(Block):
    """ResNet-V1 block: relu(skip(x) + norm(conv(relu(norm(conv(x)))))).

    Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    BRANCH = ("conv1", "norm1", "relu1", "conv2", "norm2")
    AFTER_SUM = ("relu2",)

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = conv(outputs, outputs, 3)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if stride == 1 else PaddedShortcut(inputs, outputs)
        self.sum = ResidualSum()
        self.relu2 = nn.ReLU()


@MODELS.register("resnet_cifar")
class ResNetCifar(BlockNetwork):
    """ResNet-V1 for small images: depth 6b + 2, 16 to 64 channels, option A (He et al. 2016a, section 4.2).

    Arguments not listed here are those of `normless.models`.

    Args:
        depth: counted in layers: 20, 32, 44, 56, 110, 1202 in the original.

    Shapes: (B, in_channels, H, W) with H, W ≥ 8 to logits (B, classes).

    Raises:
        ValueError: the depth is not 6b + 2, or there is no such initialization.
    """

    STEM, HEAD = ("stem", "norm", "relu"), ("pool", "classifier")

    def __init__(
        self, depth: int = 110, classes: int = 10, in_channels: int = 3, initialization: Kind | None = None
    ) -> None:
        super().__init__()
        count = blocks_per_stage(depth, 2, "A CIFAR ResNet")
        self.stem = conv(in_channels, 16, 3)
        self.norm = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.blocks = stages(BasicBlock, count, 16, (16, 32, 64))
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(64, classes)
        initialize(self, initialization)


resnet_cifar = ResNetCifar
