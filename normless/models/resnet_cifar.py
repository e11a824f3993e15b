"""The original ResNet for CIFAR (He et al. 2016, section 4.2), the network of Fixup and of Understanding BN."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, BlockNetwork, GlobalAveragePool, blocks_per_stage, conv
from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure


class PaddedShortcut(nn.Module):
    """Skip path of option A: every second position, missing channels filled with zeros; no parameters.

    Shapes: (B, in, H, W) to (B, out, ⌈H/2⌉, ⌈W/2⌉).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        before = (outputs - inputs) // 2
        self.padding = (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad."""
        return F.pad(x[:, :, ::2, ::2], self.padding)


class BasicBlock(nn.Module):
    """ResNet-V1 block: relu(skip(x) + norm(conv(relu(norm(conv(x)))))).

    Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

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

    def forward(self, x: Tensor) -> Tensor:
        """One residual block and the ReLU after it."""
        h = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        total: Tensor = self.relu2(self.sum(self.shortcut(x), h))
        return total

    def residual_structure(self) -> BlockStructure:
        """Name the block's modules, relative to it."""
        return BlockStructure(
            branch=["conv1", "norm1", "relu1", "conv2", "norm2"],
            skip=["shortcut"],
            after_sum=["relu2"],
            identity_skip=isinstance(self.shortcut, nn.Identity),
        )


@MODELS.register("resnet_cifar")
class ResNetCifar(BlockNetwork):
    """ResNet-V1 for small images: depth 6b + 2, 16 to 64 channels, option A (He et al. 2016a, section 4.2).

    Args:
        depth: counted in layers: 20, 32, 44, 56, 110, 1202 in the original.
        classes: number of logits.
        in_channels: channels of the image, 1 or 3 as a rule.
        initialization: of all weights, the classifier's included; biases start at 0. By default None: He's variance
            2 / fan-out for convolutions, as in the code of Fixup's authors, and torch's own distribution for the
            classifier, which Fixup sets to 0.

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
        channels = 16
        self.stem = conv(in_channels, channels, 3)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        blocks = []
        for stage, outputs in enumerate((16, 32, 64)):
            for index in range(count):
                blocks.append(BasicBlock(channels, outputs, stride=2 if stage and index == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(channels, classes)
        initialize(self, initialization)


resnet_cifar = ResNetCifar
