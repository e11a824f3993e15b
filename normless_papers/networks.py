"""The networks of De & Smith: named by texts where they are trained, built where they are measured.

All weights start from He's variance 2 / fan-in, the classifier's included (SkipInit, appendices C and G). The
classifier of a Wide-ResNet has no bias, with batch norm or without: ZeroInit's second part introduces biases "to each
convolution and the classification layer", and so the networks that it is compared with have none in either.
"""

from __future__ import annotations

from normless.models import WideResNet, wide_resnet

# The original of He et al. (2016a), without "the modifications to ResNet-50-V1 described by Goyal et al. (2017)"
# (ZeroInit, section 5): the stride is on the first 1×1 convolution and not on the 3×3, and the last γ starts at one.
RESNET_V1 = "normless:resnet(depth=50, initialization=he_fan_in, stride_on=conv1)"
RESNET_V2 = "normless:resnet_v2(depth=50, initialization=he_fan_in)"


def wide_resnet_text(depth: int, width: int) -> str:
    """A Wide-ResNet n-k of the papers, as text."""
    return f"normless:wide_resnet(depth={depth}, width={width}, initialization=he_fan_in, classifier_bias=False)"


def built_wide_resnet(depth: int, width: int, classes: int = 10, in_channels: int = 3) -> WideResNet:
    """The same, built."""
    return wide_resnet(depth, width, classes, in_channels, initialization="he_fan_in", classifier_bias=False)
