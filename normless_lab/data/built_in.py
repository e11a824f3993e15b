"""Images that need no download: scans of digits, and noise with uniformly random labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normless_lab.data.image_data import ImageData, Split, in_memory

SIDE = 8


def digits(*, side: int = SIDE, channels: int = 1) -> ImageData:
    """Scans of handwritten digits: 10 classes, 1×8×8, 1,437 for training and 360 for testing.

    The data of ``sklearn.datasets.load_digits`` (Alpaydin & Kaynak 1998) in one fixed stratified split; the stored
    values 0 … 16 become the bytes round(value · 255/16). A ``side`` above 8 enlarges the images bilinearly, for
    networks that divide the resolution by more than 8; ``channels=3`` repeats the channel, for networks on colours.

    Raises:
        ValueError: the side is below 8, or there are no channels.
    """
    if channels < 1:
        raise ValueError(f"Expected 1 or more channels of digits, got channels={channels}.")
    if side < SIDE:
        raise ValueError(f"The images of digits have a side of {SIDE} pixels and are only enlarged, got side={side}.")
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        pixels, labels, testing = stored["images"], stored["labels"], torch.from_numpy(stored["test"])
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    if side > SIDE:
        images = F.interpolate(images.float(), size=(side, side), mode="bilinear").round().to(torch.uint8)
    images = images.expand(-1, channels, -1, -1)
    whole = Split(images, torch.from_numpy(labels.astype(np.int64)))
    train, test = (whole.take(chosen.nonzero().flatten()) for chosen in (~testing, testing))
    return in_memory("digits", "scikit-learn load_digits, fixed stratified split", train, test, classes=10)


def gaussian(
    *, image_shape: Sequence[int] = (3, 32, 32), classes: int = 10, train: int = 1024, test: int = 256, seed: int = 0
) -> ImageData:
    """Images (C, H, W) or vectors (features,) of independent N(0, 1) with random labels, as theory assumes.

    Inputs are passed on as drawn (mean 0, standard deviation 1 by construction).

    Raises:
        ValueError: the shape has not one or three positive lengths, or a count is below 1.
    """
    _check_shape("gaussian", image_shape, {3: "(C, H, W)", 1: "(features,)"})
    return _generated(
        "gaussian",
        "independent N(0, 1)",
        lambda count, generator: torch.randn(count, *image_shape, generator=generator, dtype=torch.float32),
        lambda pixels: (torch.zeros(pixels.shape[1]), torch.ones(pixels.shape[1])),
        counts={"classes": classes, "train": train, "test": test},
        seed=seed,
    )


def correlated(
    *, image_shape: Sequence[int] = (3, 32, 32), classes: int = 10, train: int = 1024, test: int = 256, seed: int = 0
) -> ImageData:
    """Images (C, H, W) with the long-range correlations of photographs: `correlated_noise` with random labels.

    They replace photographs where a measurement needs correlated neighbouring pixels and images that differ in
    brightness, without a download.

    Raises:
        ValueError: the shape has not three positive lengths, or a count is below 1.
    """
    _check_shape("correlated", image_shape, {3: "(C, H, W)"})
    channels, height, width = image_shape
    return _generated(
        "correlated",
        "noise on several scales",
        lambda count, generator: correlated_noise(count, (channels, height, width), generator),
        lambda pixels: (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0)),
        counts={"classes": classes, "train": train, "test": test},
        seed=seed,
    )


def correlated_noise(count: int, image_shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """The sum of N(0, 1) noise on grids of 2, 4, 8, … points a side, enlarged bilinearly, and of a shift per image.

    Returns:
        float32 [count, C, H, W], not normalized.
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


def _generated(
    name: str,
    source: str,
    draw: Callable[[int, torch.Generator], Tensor],
    statistics: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    counts: dict[str, int],
    seed: int,
) -> ImageData:
    """Both sets from one generator, first the pixels and then the labels of each; `statistics` are of training."""
    for what, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{what} of {name} is a whole number from 1, got {count!r}.")
    generator = torch.Generator().manual_seed(seed)
    train, test = (
        Split(draw(counts[part], generator), torch.randint(counts["classes"], (counts[part],), generator=generator))
        for part in ("train", "test")
    )
    origin = f"{source}, random labels, seed {seed}"
    return in_memory(name, origin, train, test, classes=counts["classes"], statistics=statistics, full=1.0)


def _check_shape(name: str, image_shape: Sequence[int], lengths: dict[int, str]) -> None:
    """Refuse another shape of an example; `lengths` names the possible numbers of axes."""
    whole = isinstance(image_shape, Sequence) and all(isinstance(n, int) and n >= 1 for n in image_shape)
    if not whole or len(image_shape) not in lengths:
        raise ValueError(f"image_shape of {name} is {' or '.join(lengths.values())}, got {image_shape!r}.")
