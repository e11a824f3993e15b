"""ResNet-V1 for ImageNet (He et al. 2016a), its grouped form ResNeXt and its wide form, named as torchvision does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, get_args

from torch import nn

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, Block, BlockNetwork, GlobalAveragePool, conv
from normless.nn import ResidualSum

# Residual blocks in each of the four stages, by depth (He et al. 2016a, table 1).
BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
CHANNELS = (64, 128, 256, 512)
DEEPEST_BASIC = 34

# The convolution of a bottleneck that has its stride: the 1×1 in front or the 3×3.
StrideOn = Literal["conv1", "conv2"]

# Builds a block from its input channels, its channels and its stride.
BlockBuilder = Callable[[int, int, int], nn.Module]


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The skip path: a 1×1 convolution and a norm where the shape changes (option B), else the identity."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(Block):
    """ResNet-V1 block of two layers: relu(skip(x) + bn(conv3×3(relu(bn(conv3×3(x)))))).

    Shapes: (B, inputs, H, W) to (B, channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    BRANCH = ("conv1", "bn1", "relu1", "conv2", "bn2")
    SHORTCUT, AFTER_SUM = "downsample", ("relu2",)
    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _downsample(inputs, channels, stride)
        self.sum = ResidualSum()
        self.relu2 = nn.ReLU()


class Bottleneck(Block):
    """ResNet-V1 block of three layers: 1×1 to fewer channels, 3×3, 1×1 to four times `channels`.

    The 3×3 convolution has `groups` groups of channels · width_per_group / 64 channels each.
    Shapes: (B, inputs, H, W) to (B, 4 · channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    BRANCH = ("conv1", "bn1", "relu1", "conv2", "bn2", "relu2", "conv3", "bn3")
    SHORTCUT, AFTER_SUM = "downsample", ("relu3",)
    expansion: ClassVar[int] = 4

    def __init__(
        self, inputs: int, channels: int, stride: int, groups: int, width_per_group: int, stride_on: StrideOn
    ) -> None:
        super().__init__()
        width = channels * width_per_group // 64 * groups
        outputs = channels * self.expansion
        first, second = (stride, 1) if stride_on == "conv1" else (1, stride)
        self.conv1 = conv(inputs, width, 1, first)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = conv(width, width, 3, second, groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _downsample(inputs, outputs, stride)
        self.sum = ResidualSum()
        self.relu3 = nn.ReLU()


@MODELS.register("resnet")
class ResNet(BlockNetwork):
    """ResNet-V1 for large images, of four stages (He et al. 2016a, table 1); ResNeXt and wide ResNets too.

    Parameters and buffers have torchvision's names, so that `load_state_dict` takes its weights as they are.
    Arguments not listed here are those of `normless.models`.

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
        ValueError: a number is out of range, a network of two-layer blocks is grouped, widened or given another
            place of its stride, or there is no such place or initialization.
    """

    STEM, HEAD = ("conv1", "bn1", "relu", "maxpool"), ("avgpool", "fc")
    STAGES = ("layer1", "layer2", "layer3", "layer4")

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
        if channels < 1:
            raise ValueError(f"A ResNet has at least one channel in its first stage, got channels={channels}.")
        block, expansion = _block(depth, groups, width_per_group, stride_on)
        inner = [channels * wide // CHANNELS[0] for wide in CHANNELS]
        counts, widths = BLOCKS[depth], [inside * expansion for inside in inner]
        self.conv1 = conv(in_channels, channels, 7, 2)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for index, (inputs, count) in enumerate(zip([channels, *widths], counts, strict=False)):
            first = block(inputs, inner[index], 2 if index else 1)
            rest = (block(widths[index], inner[index], 1) for _ in range(count - 1))
            self.add_module(self.STAGES[index], nn.Sequential(first, *rest))
        self.avgpool = GlobalAveragePool()
        self.fc = nn.Linear(widths[3], classes)
        initialize(self, initialization)


resnet = ResNet


def _block(depth: int, groups: int, width_per_group: int, stride_on: StrideOn) -> tuple[BlockBuilder, int]:
    """What builds the blocks of a network, and how many times `channels` their outputs are."""
    if depth not in BLOCKS:
        raise ValueError(f"An ImageNet ResNet has depth {', '.join(map(str, BLOCKS))}, got depth={depth}.")
    if groups < 1 or width_per_group < 1:
        raise ValueError(
            "A 3×3 convolution has at least one group of at least one channel, "
            f"got groups={groups} and width_per_group={width_per_group}."
        )
    if stride_on not in get_args(StrideOn):
        raise ValueError(f"The stride of a bottleneck is on conv1, its 1×1, or conv2, its 3×3, not {stride_on!r}.")
    if depth > DEEPEST_BASIC:
        return partial(Bottleneck, groups=groups, width_per_group=width_per_group, stride_on=stride_on), 4
    if (groups, width_per_group) != (1, 64):
        raise ValueError(
            f"Only bottleneck networks are grouped or widened, those of depth 50 and more, got depth={depth} with "
            f"groups={groups} and width_per_group={width_per_group}."
        )
    if stride_on != "conv2":
        raise ValueError(
            f"Only bottleneck networks, those of depth 50 and more, have a 1×1 convolution in front that could have "
            f"the stride, got depth={depth} with stride_on={stride_on!r}."
        )
    return BasicBlock, 1
