"""Residual networks for images: ResNet-V1 and V2, ResNeXt, Wide-ResNet, and the CIFAR networks of the papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from normless.models._layers import MODELS, GlobalAveragePool, Network, PostActivation, PreActivation, conv, stages
from normless.nn._initialization import Initialization, initialize

# Residual blocks in each of the four stages, by depth (He et al. 2016a, table 1).
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
CHANNELS = (64, 128, 256, 512)
DEEPEST_BASIC = 34
# The output channels of a bottleneck, as a multiple of its inner channels.
EXPANSION = 4

StrideOn = Literal["conv1", "conv2"]
BlockBuilder = Callable[[int, int, int], nn.Module]


class PaddedShortcut(nn.Module):
    """A skip path without parameters (option A): every second position, with zeros for the additional channels.

    Shapes: (B, in, H, W) to (B, out, ⌈H/2⌉, ⌈W/2⌉).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        before = (outputs - inputs) // 2
        self.padding = (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], self.padding)


class BasicBlock(PostActivation):
    """ResNet-V1 block: relu(skip(x) + norm(conv(relu(norm(conv(x)))))).

    Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        convs = (conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3))
        super().__init__(convs, nn.Identity() if stride == 1 else PaddedShortcut(inputs, outputs))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Make a skip path: a 1×1 convolution if the shape changes, else the identity."""
    return nn.Identity() if inputs == outputs and stride == 1 else conv(inputs, outputs, 1, stride)


def _wide_block(inputs: int, outputs: int, stride: int) -> PreActivation:
    """Make x + conv3×3(φ(conv3×3(φ(x)))), φ = relu ∘ norm."""
    convs = (conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3))
    return PreActivation(convs, _projection(inputs, outputs, stride))


def _pre_activation_bottleneck(inputs: int, channels: int, stride: int) -> PreActivation:
    """Make skip(x) + conv1×1(φ(conv3×3(φ(conv1×1(φ(x)))))), φ = relu ∘ norm.

    A skip path that only changes the resolution takes every second position of x, as a max-pool over one position.
    """
    outputs = channels * EXPANSION
    convs = (conv(inputs, channels, 1), conv(channels, channels, 3, stride), conv(channels, outputs, 1))
    thinned = inputs == outputs and stride > 1
    return PreActivation(convs, nn.MaxPool2d(1, stride=stride) if thinned else _projection(inputs, outputs, stride))


class ResNetBlock(PostActivation):
    """A ResNet-V1 block with torchvision's names."""

    NORM, SHORTCUT = "bn", "downsample"


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Make a skip path of option B: a 1×1 convolution and a norm if the shape changes, else the identity."""
    skip = _projection(inputs, outputs, stride)
    return skip if isinstance(skip, nn.Identity) else nn.Sequential(skip, nn.BatchNorm2d(outputs))


def _basic(inputs: int, channels: int, stride: int) -> ResNetBlock:
    """Make a block of two layers: relu(skip(x) + bn(conv3×3(relu(bn(conv3×3(x))))))."""
    convs = (conv(inputs, channels, 3, stride), conv(channels, channels, 3))
    return ResNetBlock(convs, _downsample(inputs, channels, stride))


def _bottleneck(
    inputs: int, channels: int, stride: int, groups: int, width_per_group: int, stride_on: StrideOn
) -> ResNetBlock:
    """Make a block of three layers: 1×1 to fewer channels, 3×3 in `groups`, 1×1 to `EXPANSION` · `channels`."""
    width, outputs = channels * width_per_group // 64 * groups, EXPANSION * channels
    first, second = (stride, 1) if stride_on == "conv1" else (1, stride)
    convs = (conv(inputs, width, 1, first), conv(width, width, 3, second, groups), conv(width, outputs, 1))
    return ResNetBlock(convs, _downsample(inputs, outputs, stride))


@MODELS.register("resnet_cifar")
class ResNetCifar(Network):
    """ResNet-V1 for small images: depth 6b + 2, 16 to 64 channels, option A (He et al. 2016a, section 4.2).

    Arguments not listed here are those of `normless.models`.

    Args:
        depth: the number of layers: 20, 32, 44, 56, 110, 1202 in the original.

    Shapes: (B, in_channels, H, W) with H, W ≥ 8 to logits (B, classes).

    Raises:
        ValueError: the depth is not 6b + 2, or the initialization is unknown.
    """

    def __init__(
        self, depth: int = 110, classes: int = 10, in_channels: int = 3, initialization: Initialization | None = None
    ) -> None:
        super().__init__()
        self.example_shape = (in_channels, 32, 32)
        counts = [blocks_per_stage(depth, 2, "A CIFAR ResNet")] * 3
        self.stem = conv(in_channels, 16, 3)
        self.norm = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(*chain(*stages(BasicBlock, counts, 16, (16, 32, 64))))
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(64, classes)
        initialize(self, initialization)


@MODELS.register("wide_resnet")
class WideResNet(Network):
    """Wide-ResNet n-k: depth n = 6b + 4, 16k to 64k channels (Zagoruyko & Komodakis 2016, table 1).

    Arguments not listed here are those of `normless.models`.

    Args:
        depth: n, the number of layers; 10,000 and more work.
        width: the width factor k.
        initialization: by default He's variance 2 / fan-in, as in De & Smith (SkipInit, appendix C; in the code of
            appendix G, `variance_scaling_initializer()` of the classifier too).
        classifier_bias: whether the classifier has a bias, as in Zagoruyko & Komodakis.

    Shapes: (B, in_channels, H, W) with H, W ≥ 8 to logits (B, classes).

    Raises:
        ValueError: the depth is not 6b + 4, or the initialization is unknown.
    """

    def __init__(
        self,
        depth: int = 16,
        width: int = 4,
        classes: int = 10,
        in_channels: int = 3,
        initialization: Initialization | None = "he_fan_in",
        classifier_bias: bool = True,
    ) -> None:
        super().__init__()
        self.example_shape = (in_channels, 32, 32)
        counts = [blocks_per_stage(depth, 4, "A Wide-ResNet")] * 3
        widths = (16 * width, 32 * width, 64 * width)
        self.stem = conv(in_channels, 16, 3)
        self.blocks = nn.Sequential(*chain(*stages(_wide_block, counts, 16, widths)))
        self.norm = nn.BatchNorm2d(64 * width)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(64 * width, classes, bias=classifier_bias)
        initialize(self, initialization)


@MODELS.register("resnet")
class ResNet(Network):
    """ResNet-V1 for large images, of four stages (He et al. 2016a, table 1); ResNeXt and wide ResNets too.

    Parameters and buffers have torchvision's names. Arguments not listed here are those of `normless.models`.

    Args:
        depth: the number of layers: 18, 34 (two-layer blocks), 50, 101 or 152 (three-layer bottlenecks).
        groups: groups of every 3×3 convolution; 32 in ResNeXt.
        width_per_group: channels of each group in the first stage, doubled in each further stage: 4 in
            ResNeXt-50 32×4d, 8 in ResNeXt-101 32×8d; 128, with one group, in the wide ResNet-50-2 and 101-2.
        channels: as in `normless.models`; a group's channels stay in proportion.
        stride_on: the convolution of a bottleneck with its stride: `conv2`, the 3×3, in torchvision and in Goyal et
            al. (2017, section 5.1); `conv1`, the 1×1 before it, in the original (He et al. 2016a).

    Shapes: (B, in_channels, H, W) to logits (B, classes); made for H = W = 224, takes any size.

    Raises:
        ValueError: an argument is out of range, or does not apply to two-layer blocks.
    """

    def __init__(
        self,
        depth: int = 50,
        classes: int = 1000,
        in_channels: int = 3,
        groups: int = 1,
        width_per_group: int = 64,
        channels: int = CHANNELS[0],
        initialization: Initialization | None = None,
        stride_on: StrideOn = "conv2",
    ) -> None:
        super().__init__()
        self.example_shape = (in_channels, 64, 64)
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


@MODELS.register("resnet_v2")
class ResNetV2(Network):
    """ResNet-V2 for large images, of four stages (He et al. 2016b; De & Smith, SkipInit, appendix G).

    It is the network of the SkipInit paper's appendix G with batch normalization before every ReLU and without
    biases; `zeroinit(dropout=0.2)` converts it to the network of the paper. In contrast to the original, the *last*
    block of stages 1 to 3 has the stride. Padding does not depend on the size of the image, and the max-pool of the
    stem pads with zeros. Arguments not listed here are those of `normless.models`.

    Args:
        depth: the number of layers: 50, 101 or 152; 50 in the paper.
        initialization: by default He's variance 2 / fan-in, as of `variance_scaling_initializer()` in appendix G,
            which also truncates the distribution at two standard deviations; he_fan_in_truncated does so.

    Shapes: (B, in_channels, H, W) to logits (B, classes); made for H = W = 224, takes any size.

    Raises:
        ValueError: the depth, the number of channels or the initialization is not valid.
    """

    def __init__(
        self,
        depth: int = 50,
        classes: int = 1000,
        in_channels: int = 3,
        initialization: Initialization | None = "he_fan_in",
        channels: int = CHANNELS[0],
    ) -> None:
        super().__init__()
        self.example_shape = (in_channels, 64, 64)
        counts, widths = _sizes("A ResNet-V2", depth, channels, DEEPEST_BASIC)
        self.stem = conv(in_channels, channels, 7, 2)
        # The pooling would pad with minus infinity; without a ReLU the output of the stem may be negative.
        self.pad = nn.ZeroPad2d(1)
        self.max_pool = nn.MaxPool2d(3, stride=2)
        built = stages(_pre_activation_bottleneck, counts, channels, widths, expansion=EXPANSION, stride_last=True)
        self.blocks = nn.Sequential(*chain(*built))
        inputs = widths[-1] * EXPANSION
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(inputs, classes)
        initialize(self, initialization)


def _sizes(name: str, depth: int, channels: int, above: int = 0) -> tuple[tuple[int, ...], list[int]]:
    """Return the blocks and the channels of each stage of a network of this depth, which must exceed `above`."""
    depths = [known for known in BLOCKS if known > above]
    if depth not in depths:
        raise ValueError(f"{name} has depth {', '.join(map(str, depths))}, got depth={depth}.")
    if channels < 1:
        raise ValueError(f"{name} has at least one channel in its first stage, got channels={channels}.")
    return BLOCKS[depth], [channels * wide // CHANNELS[0] for wide in CHANNELS]


def _block(depth: int, groups: int, width_per_group: int, stride_on: StrideOn) -> tuple[BlockBuilder, int]:
    """Return the function that makes the blocks of a network, and the ratio of their outputs to `channels`."""
    if groups < 1 or width_per_group < 1:
        raise ValueError(
            "A 3×3 convolution has at least one group of at least one channel, "
            f"got groups={groups} and width_per_group={width_per_group}."
        )
    if stride_on not in get_args(StrideOn):
        raise ValueError(f"The stride of a bottleneck is on conv1, its 1×1, or conv2, its 3×3, not {stride_on!r}.")
    if depth > DEEPEST_BASIC:
        return partial(_bottleneck, groups=groups, width_per_group=width_per_group, stride_on=stride_on), EXPANSION
    if (groups, width_per_group, stride_on) != (1, 64, "conv2"):
        raise ValueError(
            "Only bottleneck networks, of depth 50 or more, take stride_on, groups and width_per_group, "
            f"got depth={depth} with stride_on={stride_on!r}, groups={groups} and width_per_group={width_per_group}."
        )
    return _basic, 1


def blocks_per_stage(depth: int, layers_outside: int, name: str) -> int:
    """Return b for a network of depth 6b + layers_outside: three stages of b blocks with two layers each.

    Raises:
        ValueError: the depth is not of that form with b ≥ 1.
    """
    blocks, rest = divmod(depth - layers_outside, 6)
    if rest or blocks < 1:
        nearest = 6 * max(1, round((depth - layers_outside) / 6)) + layers_outside
        raise ValueError(
            f"{name} has depth 6b + {layers_outside} with b ≥ 1 blocks in each of its three stages, "
            f"got depth={depth}; the nearest is {nearest}."
        )
    return blocks
