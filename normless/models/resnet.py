"""ResNet-V1 for ImageNet (He et al. 2016a), its grouped form ResNeXt and its wide form, named as torchvision does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, get_args

from torch import Tensor, nn

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, GlobalAveragePool, block_structures, conv
from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure, Structure

# Residual blocks in each of the four stages, by depth (He et al. 2016a, table 1).
BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
CHANNELS = (64, 128, 256, 512)
STAGES = ("layer1", "layer2", "layer3", "layer4")
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


class BasicBlock(nn.Module):
    """ResNet-V1 block of two layers: relu(skip(x) + bn(conv3×3(relu(bn(conv3×3(x)))))).

    Shapes: (B, inputs, H, W) to (B, channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

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

    def forward(self, x: Tensor) -> Tensor:
        """One residual block and the ReLU after it."""
        h = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        total: Tensor = self.relu2(self.sum(self.downsample(x), h))
        return total

    def residual_structure(self) -> BlockStructure:
        """Name the block's modules, relative to it."""
        return BlockStructure(
            branch=["conv1", "bn1", "relu1", "conv2", "bn2"], skip=["downsample"], after_sum=["relu2"]
        )


class Bottleneck(nn.Module):
    """ResNet-V1 block of three layers: 1×1 to fewer channels, 3×3, 1×1 to four times `channels`.

    The 3×3 convolution has `groups` groups of channels · width_per_group / 64 channels each; `stride_on` names the
    convolution that has the stride.
    Shapes: (B, inputs, H, W) to (B, 4 · channels, ⌈H/stride⌉, ⌈W/stride⌉).
    """

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

    def forward(self, x: Tensor) -> Tensor:
        """One residual block and the ReLU after it."""
        h = self.relu1(self.bn1(self.conv1(x)))
        h = self.relu2(self.bn2(self.conv2(h)))
        h = self.bn3(self.conv3(h))
        total: Tensor = self.relu3(self.sum(self.downsample(x), h))
        return total

    def residual_structure(self) -> BlockStructure:
        """Name the block's modules, relative to it."""
        return BlockStructure(
            branch=["conv1", "bn1", "relu1", "conv2", "bn2", "relu2", "conv3", "bn3"],
            skip=["downsample"],
            after_sum=["relu3"],
        )


@MODELS.register("resnet")
class ResNet(nn.Module):
    """ResNet-V1 for large images, of four stages (He et al. 2016a, table 1); ResNeXt and wide ResNets too.

    The layout is torchvision's: the stride of a bottleneck is on its 3×3 convolution unless `stride_on` says
    otherwise, and parameters and buffers have its names, so that `load_state_dict` takes its weights as they are.

    Args:
        depth: counted in layers: 18, 34 (two-layer blocks), 50, 101 or 152 (three-layer bottlenecks).
        classes: number of logits.
        in_channels: channels of the image, 1 or 3 as a rule.
        groups: groups of every 3×3 convolution; 32 in ResNeXt.
        width_per_group: channels of each group in the first stage, doubled by every further stage: 4 in
            ResNeXt-50 32×4d, 8 in ResNeXt-101 32×8d; 128, with one group, in the wide ResNet-50-2 and 101-2.
        channels: of the stem and the first stage, doubled by every further stage; fewer than the published 64 make a
            small network. A group's channels stay in proportion.
        initialization: of all weights, the classifier's included; biases start at 0. By default None, which is
            torchvision's: He's variance 2 / fan-out for convolutions and torch's own distribution for the classifier.
        stride_on: the convolution of a bottleneck that has its stride: `conv2`, the 3×3, in torchvision and in Goyal
            et al. (2017, section 5.1); `conv1`, the 1×1 in front of it, in the original (He et al. 2016a).

    Shapes: (B, in_channels, H, W) to logits (B, classes); made for H = W = 224, takes any.

    Raises:
        ValueError: the depth is none of these, groups, width_per_group or channels is below 1, a network of
            two-layer blocks is to be grouped, widened or given another place of its stride, or there is no such
            place or initialization.
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
            stage = _stage(block, count, inputs, inner[index], widths[index], stride=2 if index else 1)
            self.add_module(STAGES[index], stage)
        self.avgpool = GlobalAveragePool()
        self.fc = nn.Linear(widths[3], classes)
        initialize(self, initialization)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        h = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in STAGES:
            h = self.get_submodule(stage)(h)
        logits: Tensor = self.fc(self.avgpool(h))
        return logits

    def residual_structure(self) -> Structure:
        """Name the modules in execution order."""
        return Structure(
            stem=["conv1", "bn1", "relu", "maxpool"],
            blocks=block_structures(self, *STAGES),
            head=["avgpool", "fc"],
        )


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
        bottleneck = partial(Bottleneck, groups=groups, width_per_group=width_per_group, stride_on=stride_on)
        return bottleneck, Bottleneck.expansion
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
    return BasicBlock, BasicBlock.expansion


def _stage(block: BlockBuilder, count: int, inputs: int, channels: int, outputs: int, stride: int) -> nn.Sequential:
    """Blocks in a row; the first takes on the new width and resolution."""
    return nn.Sequential(block(inputs, channels, stride), *(block(outputs, channels, 1) for _ in range(count - 1)))
