"""Wide-ResNet for small images (Zagoruyko & Komodakis 2016), the main network of the SkipInit and ZeroInit papers."""

from __future__ import annotations

from torch import nn

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, Block, BlockNetwork, GlobalAveragePool, blocks_per_stage, conv, stages
from normless.nn import ResidualSum


class WideBlock(Block):
    """Pre-activation block: x + conv(relu(norm(conv(relu(norm(x)))))).

    A block that changes width or resolution reads its skip path, a 1×1 convolution, from the first ReLU.
    Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    FIRST = ("norm1", "relu1")
    BRANCH = ("conv1", "norm2", "relu2", "conv2")

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


@MODELS.register("wide_resnet")
class WideResNet(BlockNetwork):
    """Wide-ResNet n-k: depth n = 6b + 4, 16k to 64k channels (Zagoruyko & Komodakis 2016, table 1).

    Arguments not listed here are those of `normless.models`.

    Args:
        depth: n, counted in layers; 10,000 and beyond work.
        width: the width factor k.
        initialization: by default He's variance 2 / fan-in, that of De & Smith (SkipInit, appendix C; in the code of
            appendix G the classifier's `variance_scaling_initializer()` has it too).
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
        self.stem = conv(in_channels, 16, 3)
        self.blocks = stages(WideBlock, count, 16, (16 * width, 32 * width, 64 * width))
        self.norm = nn.BatchNorm2d(64 * width)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(64 * width, classes, bias=classifier_bias)
        initialize(self, initialization)


wide_resnet = WideResNet
