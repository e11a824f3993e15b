"""ResNet-V2 for ImageNet (He et al. 2016b) in the form of the SkipInit paper's reference code (its appendix G)."""

from __future__ import annotations

from torch import nn

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, Block, BlockNetwork, GlobalAveragePool, conv
from normless.models.resnet import BLOCKS, CHANNELS, DEEPEST_BASIC
from normless.nn import ResidualSum

EXPANSION = 4


class PreActivationBottleneck(Block):
    """Pre-activation block of three layers: skip(x) + conv1×1(φ(conv3×3(φ(conv1×1(φ(x)))))), φ = relu ∘ norm.

    A block that changes the width reads its skip path, a 1×1 convolution, from the first φ; one that only changes the
    resolution takes every second position of x itself, by a max-pool over one position.
    Shapes: (B, inputs, H, W) to (B, 4 · channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    FIRST = ("norm1", "relu1")
    BRANCH = ("conv1", "norm2", "relu2", "conv2", "norm3", "relu3", "conv3")

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.projects = inputs != outputs
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = conv(inputs, channels, 1)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.conv2 = conv(channels, channels, 3, stride)
        self.norm3 = nn.BatchNorm2d(channels)
        self.relu3 = nn.ReLU()
        self.conv3 = conv(channels, outputs, 1)
        self.shortcut: nn.Module = nn.Identity()
        if self.projects:
            self.shortcut = conv(inputs, outputs, 1, stride)
        elif stride != 1:
            self.shortcut = nn.MaxPool2d(1, stride=stride)
        self.sum = ResidualSum()


@MODELS.register("resnet_v2")
class ResNetV2(BlockNetwork):
    """ResNet-V2 for large images, of four stages (He et al. 2016b; De & Smith, SkipInit, appendix G).

    It is the network of the SkipInit paper's appendix G with batch normalization in front of every ReLU and without
    biases: `zeroinit(dropout=0.2)` makes it that network. Unlike the original, the *last* block of stages 1 to 3
    has the stride. Padding is fixed, the same whatever the image's size, and the max-pool of the stem sees zeros
    beyond the border. Arguments not listed here are those of `normless.models`.

    Args:
        depth: counted in layers: 50, 101 or 152; 50 in the paper.
        initialization: by default He's variance 2 / fan-in, that of the `variance_scaling_initializer()` in appendix
            G, which also cuts the distribution off at two standard deviations.

    Shapes: (B, in_channels, H, W) to logits (B, classes); made for H = W = 224, takes any.

    Raises:
        ValueError: the depth is none of these, there is no channel, or there is no such initialization.
    """

    STEM, HEAD = ("stem", "pad", "max_pool"), ("norm", "relu", "pool", "classifier")

    def __init__(
        self,
        depth: int = 50,
        classes: int = 1000,
        in_channels: int = 3,
        initialization: Kind | None = "he_fan_in",
        channels: int = CHANNELS[0],
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"A ResNet-V2 has at least one channel in its first stage, got channels={channels}.")
        depths = [known for known in BLOCKS if known > DEEPEST_BASIC]
        if depth not in depths:
            raise ValueError(f"A ResNet-V2 has depth {', '.join(map(str, depths))}, got depth={depth}.")
        self.stem = conv(in_channels, channels, 7, 2)
        # Not the padding of the pooling itself, which is minus infinity: no ReLU makes the stem's output positive.
        self.pad = nn.ZeroPad2d(1)
        self.max_pool = nn.MaxPool2d(3, stride=2)
        blocks = []
        inputs = channels
        for wide, count in zip(CHANNELS, BLOCKS[depth], strict=True):
            inner = channels * wide // CHANNELS[0]
            for index in range(count):
                ends_resolution = index == count - 1 and wide != CHANNELS[-1]
                blocks.append(PreActivationBottleneck(inputs, inner, stride=2 if ends_resolution else 1))
                inputs = inner * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(inputs, classes)
        initialize(self, initialization)


resnet_v2 = ResNetV2
