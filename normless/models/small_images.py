"""Networks for small images: the ResNet for CIFAR of Fixup and Understanding BN, the Wide-ResNet of De & Smith."""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn
from torch.nn import functional as F

from normless.initialization import Kind, initialize
from normless.models.layers import MODELS, GlobalAveragePool, Network, PostActivation, PreActivation, conv, stages


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


class BasicBlock(PostActivation):
    """ResNet-V1 block: relu(skip(x) + norm(conv(relu(norm(conv(x)))))).

    Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        convs = (conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3))
        super().__init__(convs, nn.Identity() if stride == 1 else PaddedShortcut(inputs, outputs))


class WideBlock(PreActivation):
    """Pre-activation block: x + conv(relu(norm(conv(relu(norm(x)))))).

    A block that changes width or resolution reads its skip path, a 1×1 convolution, from the first ReLU.
    Shapes: (B, in, H, W) to (B, out, ⌈H/stride⌉, ⌈W/stride⌉).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        convs = (conv(inputs, outputs, 3, stride), conv(outputs, outputs, 3))
        same = inputs == outputs and stride == 1
        super().__init__(convs, nn.Identity() if same else conv(inputs, outputs, 1, stride))


@MODELS.register("resnet_cifar")
class ResNetCifar(Network):
    """ResNet-V1 for small images: depth 6b + 2, 16 to 64 channels, option A (He et al. 2016a, section 4.2).

    Arguments not listed here are those of `normless.models`.

    Args:
        depth: counted in layers: 20, 32, 44, 56, 110, 1202 in the original.

    Shapes: (B, in_channels, H, W) with H, W ≥ 8 to logits (B, classes).

    Raises:
        ValueError: the depth is not 6b + 2, or there is no such initialization.
    """

    def __init__(
        self, depth: int = 110, classes: int = 10, in_channels: int = 3, initialization: Kind | None = None
    ) -> None:
        super().__init__()
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
        depth: n, counted in layers; 10,000 and beyond work.
        width: the width factor k.
        initialization: by default He's variance 2 / fan-in, that of De & Smith (SkipInit, appendix C; in the code of
            appendix G the classifier's `variance_scaling_initializer()` has it too).
        classifier_bias: whether the classifier has a bias, as in Zagoruyko & Komodakis.

    Shapes: (B, in_channels, H, W) with H, W ≥ 8 to logits (B, classes).

    Raises:
        ValueError: the depth is not 6b + 4, or there is no such initialization.
    """

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
        counts = [blocks_per_stage(depth, 4, "A Wide-ResNet")] * 3
        widths = (16 * width, 32 * width, 64 * width)
        self.stem = conv(in_channels, 16, 3)
        self.blocks = nn.Sequential(*chain(*stages(WideBlock, counts, 16, widths)))
        self.norm = nn.BatchNorm2d(64 * width)
        self.relu = nn.ReLU()
        self.pool = GlobalAveragePool()
        self.classifier = nn.Linear(64 * width, classes, bias=classifier_bias)
        initialize(self, initialization)


def blocks_per_stage(depth: int, layers_outside: int, name: str) -> int:
    """b for a network of depth 6b + layers_outside: three stages of b blocks with two layers each.

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
