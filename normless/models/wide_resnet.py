"""Wide-ResNet for small images (Zagoruyko & Komodakis 2016), the main network of the SkipInit and ZeroInit papers."""

from __future__ import annotations

from torch import Tensor, nn

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, BlockNetwork, GlobalAveragePool, blocks_per_stage, conv
from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure


class WideBlock(nn.Module):
    """Pre-activation block: x + conv(relu(norm(conv(relu(norm(x)))))).

    A block that changes width or resolution reads its skip path, a 1×1 convolution, from the first ReLU,
    which branch and skip path then share. Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.projects = inputs != outputs or stride != 1
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = conv(inputs, outputs, 1, stride) if self.projects else nn.Identity()
        self.sum = ResidualSum()

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        h = self.relu1(self.norm1(x))
        skip = self.shortcut(h if self.projects else x)
        h = self.conv2(self.relu2(self.norm2(self.conv1(h))))
        total: Tensor = self.sum(skip, h)
        return total

    def residual_structure(self) -> BlockStructure:
        """Name the block's modules, relative to it."""
        first, rest = ["norm1", "relu1"], ["conv1", "norm2", "relu2", "conv2"]
        if self.projects:
            return BlockStructure(shared=first, branch=rest, skip=["shortcut"], identity_skip=False)
        return BlockStructure(branch=first + rest)


@MODELS.register("wide_resnet")
class WideResNet(BlockNetwork):
    """Wide-ResNet n-k: depth n = 6b + 4, 16k to 64k channels (Zagoruyko & Komodakis 2016, table 1).

    Args:
        depth: n, counted in layers; 10,000 and beyond work.
        width: the width factor k.
        classes: number of logits.
        in_channels: channels of the image, 1 or 3 as a rule.
        initialization: of all weights, the classifier's included; biases start at 0. By default He's variance
            2 / fan-in, that of De & Smith (SkipInit, appendix C; in the code of appendix G the classifier's
            `variance_scaling_initializer()` has it too). None is He's variance 2 / fan-out for convolutions and
            torch's own distribution for the classifier, as in the code of Fixup's authors.
        classifier_bias: whether the classifier has a bias, as in Zagoruyko & Komodakis.

    Shapes: (B, in_channels, H, W) with H, W ≥ 8 to logits (B, classes).

    Raises:
        ValueError: the depth is not 6b + 4, or there is no such initialization.
    """

    STEM, HEAD = ("stem",), ("norm", "relu", "pool", "classifier")

    def __init__(
        self,
        depth: int = 16,
        width: int = 4,
        classes: int = 10,
        in_channels: int = 3,
        initialization: Kind | None = "he_fan_in",
        classifier_bias: bool = True,
    ) -> None:
        super().__init__()
        count = blocks_per_stage(depth, 4, "A Wide-ResNet")
        channels = 16
        self.stem = conv(in_channels, channels, 3)
        blocks = []
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for index in range(count):
                blocks.append(WideBlock(channels, outputs, stride=2 if stage and index == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(channels, classes, bias=classifier_bias)
        initialize(self, initialization)


wide_resnet = WideResNet
