"""Networks for large images: ResNet-V1 with its grouped form ResNeXt and its wide form, and ResNet-V2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Literal, get_args

from torch import nn

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, GlobalAveragePool, Network, PostActivation, PreActivation, conv, stages

# Residual blocks in each of the four stages, by depth (He et al. 2016a, table 1).
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CHANNELS = (64, 128, 256, 512)
DEEPEST_BASIC = 34
# The channels that a bottleneck puts out, as a multiple of its inner ones.
EXPANSION = 4

StrideOn = Literal["conv1", "conv2"]
BlockBuilder = Callable[[int, int, int], nn.Module]


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The skip path: a 1×1 convolution and a norm where the shape changes (option B), else the identity."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(PostActivation):
    """ResNet-V1 block of two layers: relu(skip(x) + bn(conv3×3(relu(bn(conv3×3(x)))))).

    Shapes: (B, inputs, H, W) to (B, channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    NORM, SHORTCUT = "bn", "downsample"

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        convs = (conv(inputs, channels, 3, stride), conv(channels, channels, 3))
        super().__init__(convs, _downsample(inputs, channels, stride))


class Bottleneck(PostActivation):
    """ResNet-V1 block of three layers: 1×1 to fewer channels, 3×3, 1×1 to four times `channels`.

    The 3×3 convolution has `groups` groups of channels · width_per_group / 64 channels each.
    Shapes: (B, inputs, H, W) to (B, 4 · channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    NORM, SHORTCUT = "bn", "downsample"

    def __init__(
        self, inputs: int, channels: int, stride: int, groups: int, width_per_group: int, stride_on: StrideOn
    ) -> None:
        width = channels * width_per_group // 64 * groups
        outputs = EXPANSION * channels
        first, second = (stride, 1) if stride_on == "conv1" else (1, stride)
        convs = (conv(inputs, width, 1, first), conv(width, width, 3, second, groups), conv(width, outputs, 1))
        super().__init__(convs, _downsample(inputs, outputs, stride))


@MODELS.register("resnet")
class ResNet(Network):
    """ResNet-V1 for large images, of four stages (He et al. 2016a, table 1); ResNeXt and wide ResNets too.

    Parameters and buffers have torchvision's names. Arguments not listed here are those of `normless.models`.

    Args:
        depth: counted in layers: 18, 34 (two-layer blocks), 50, 101 or 152 (three-layer bottlenecks).
        groups: groups of every 3×3 convolution; 32 in ResNeXt.
        width_per_group: channels of each group in the first stage, doubled by every further stage: 4 in
            ResNeXt-50 32×4d, 8 in ResNeXt-101 32×8d; 128, with one group, in the wide ResNet-50-2 and 101-2.
        channels: as in `normless.models`; a group's channels stay in proportion.
        stride_on: the convolution of a bottleneck that has its stride: `conv2`, the 3×3, in torchvision and in Goyal
            et al. (2017, section 5.1); `conv1`, the 1×1 in front of it, in the original (He et al. 2016a).

    Shapes: (B, in_channels, H, W) to logits (B, classes); made for H = W = 224, takes any.

    Raises:
        ValueError: an argument is out of range, or one that two-layer blocks do not have is changed.
    """

    def __init__(
        self,
        depth: int = 50,
        classes: int = 1000,
        in_channels: int = 3,
        groups: int = 1,
        width_per_group: int = 64,
        channels: int = CHANNELS[0],
        initialization: Kind | None = None,
        stride_on: StrideOn = "conv2",
    ) -> None:
        super().__init__()
        counts, widths = _sizes("An ImageNet ResNet", depth, channels)
        block, expansion = _block(depth, groups, width_per_group, stride_on)
        self.conv1 = conv(in_channels, channels, 7, 2)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        built = stages(block, counts, channels, widths, expansion=expansion)
        for index, stage in enumerate(built, 1):
            self.add_module(f"layer{index}", stage)
        self.avgpool = GlobalAveragePool()
        self.fc = nn.Linear(expansion * widths[-1], classes)
        initialize(self, initialization)


class PreActivationBottleneck(PreActivation):
    """Pre-activation block of three layers: skip(x) + conv1×1(φ(conv3×3(φ(conv1×1(φ(x)))))), φ = relu ∘ norm.

    A block that changes the width reads its skip path, a 1×1 convolution, from the first φ; one that only changes the
    resolution takes every second position of x itself, by a max-pool over one position.
    Shapes: (B, inputs, H, W) to (B, 4 · channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        outputs = channels * EXPANSION
        convs = (conv(inputs, channels, 1), conv(channels, channels, 3, stride), conv(channels, outputs, 1))
        shortcut: nn.Module = nn.Identity() if stride == 1 else nn.MaxPool2d(1, stride=stride)
        super().__init__(convs, shortcut if inputs == outputs else conv(inputs, outputs, 1, stride))


@MODELS.register("resnet_v2")
class ResNetV2(Network):
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

    def __init__(
        self,
        depth: int = 50,
        classes: int = 1000,
        in_channels: int = 3,
        initialization: Kind | None = "he_fan_in",
        channels: int = CHANNELS[0],
    ) -> None:
        super().__init__()
        counts, widths = _sizes("A ResNet-V2", depth, channels, DEEPEST_BASIC)
        self.stem = conv(in_channels, channels, 7, 2)
        # Not the padding of the pooling itself, which is minus infinity: no ReLU makes the stem's output positive.
        self.pad = nn.ZeroPad2d(1)
        self.max_pool = nn.MaxPool2d(3, stride=2)
        built = stages(PreActivationBottleneck, counts, channels, widths, expansion=EXPANSION, stride_last=True)
        self.blocks = nn.Sequential(*chain(*built))
        inputs = widths[-1] * EXPANSION
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(inputs, classes)
        initialize(self, initialization)


def _sizes(name: str, depth: int, channels: int, above: int = 0) -> tuple[tuple[int, ...], list[int]]:
    """The blocks and the channels of each stage of a network of this depth, which is one of those above `above`."""
    depths = [known for known in BLOCKS if known > above]
    if depth not in depths:
        raise ValueError(f"{name} has depth {', '.join(map(str, depths))}, got depth={depth}.")
    if channels < 1:
        raise ValueError(f"{name} has at least one channel in its first stage, got channels={channels}.")
    return BLOCKS[depth], [channels * wide // CHANNELS[0] for wide in CHANNELS]


def _block(depth: int, groups: int, width_per_group: int, stride_on: StrideOn) -> tuple[BlockBuilder, int]:
    """What builds the blocks of a network, and how many times `channels` their outputs are."""
    if groups < 1 or width_per_group < 1:
        raise ValueError(
            "A 3×3 convolution has at least one group of at least one channel, "
            f"got groups={groups} and width_per_group={width_per_group}."
        )
    if stride_on not in get_args(StrideOn):
        raise ValueError(f"The stride of a bottleneck is on conv1, its 1×1, or conv2, its 3×3, not {stride_on!r}.")
    if depth > DEEPEST_BASIC:
        return partial(Bottleneck, groups=groups, width_per_group=width_per_group, stride_on=stride_on), EXPANSION
    if (groups, width_per_group, stride_on) != (1, 64, "conv2"):
        raise ValueError(
            "Only bottleneck networks are grouped or widened, or have a 1×1 convolution in front that could have the "
            f"stride, those of depth 50 and more, got depth={depth} with stride_on={stride_on!r}, groups={groups} "
            f"and width_per_group={width_per_group}."
        )
    return BasicBlock, 1
