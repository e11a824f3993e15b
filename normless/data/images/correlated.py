"""Generated images with the long-range correlations of photographs: noise on several scales, random labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from normless.data.images.generated import checked_shape, generated
from normless.data.images.image_data import ImageData


def correlated(
    *,
    root: Path,
    download: bool,
    image_shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    train: int = 1024,
    test: int = 256,
    seed: int = 0,
) -> ImageData:
    """Draw images (C, H, W) of `correlated_noise`, with uniformly random labels.

    They stand in for photographs where a measurement needs neighbouring pixels to be alike and images to differ in
    brightness, and nothing may be downloaded. Neither ``root`` nor ``download`` has a use.

    Raises:
        ValueError: the shape has not three positive lengths, or a count is below 1.
    """
    channels, height, width = checked_shape("correlated", image_shape, {3: "(C, H, W)"})
    return generated(
        "correlated",
        "noise on several scales",
        lambda count, generator: correlated_noise(count, (channels, height, width), generator),
        lambda pixels: (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0)),
        classes=classes,
        train=train,
        test=test,
        seed=seed,
    )


def correlated_noise(count: int, image_shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """The sum of N(0, 1) noise on grids of 2, 4, 8, … points a side, widened bilinearly, and of a shift per image.

    Args:
        count: how many images.
        image_shape: (C, H, W).
        generator: what is drawn from.

    Returns:
        Shape (count, C, H, W), float32, not normalized.
    """
    channels, height, width = image_shape
    side = max(height, width)
    powers = [2**power for power in range(1, side.bit_length()) if 2**power < side]
    images = torch.zeros(count, channels, height, width)
    for scale in (*powers, side):
        grid = (min(scale, height), min(scale, width))
        noise = torch.randn(count, channels, *grid, generator=generator)
        images += F.interpolate(noise, size=(height, width), mode="bilinear", align_corners=False)
    return images + torch.randn(count, 1, 1, 1, generator=generator)
