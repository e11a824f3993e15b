"""Random crop, flip, cutout and mixup of a whole batch at once, each example with its own draw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images, in this order; test images are not augmented.

    Attributes:
        crop: pixels of zeros put around the image before a window of its own size is cut at random; 0 is off.
        flip: mirror left and right with probability 1/2.
        cutout: side in pixels of the square set to the mean (DeVries & Taylor 2017); 0 is off.
        mixup: α of the Beta(α, α) from which each mixture's λ is drawn (Zhang et al. 2017); 0 is off.

    Raises:
        ValueError: a length is not a whole number ≥ 0, or mixup is not a finite number ≥ 0.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0
    mixup: float = 0.0

    def __post_init__(self) -> None:
        for name in ("crop", "cutout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} is a number of pixels, 0 or more; got {value!r}.")
        if not (math.isfinite(self.mixup) and self.mixup >= 0):
            raise ValueError(f"mixup is the α of a Beta distribution, 0 (off) or more; got {self.mixup!r}.")


_CROP_AND_FLIP = Augmentation(crop=4, flip=True)
_FLIP = Augmentation(flip=True)
AUGMENTATIONS: Mapping[str, Augmentation] = MappingProxyType(
    {"cifar10": _CROP_AND_FLIP, "cifar100": _CROP_AND_FLIP, "image_folder": _FLIP, "pets": _FLIP}
)
"""The defaults of the data sets that have one; image files are cropped where they are read."""


def crop(images: Tensor, shift: Tensor, padding: int) -> Tensor:
    """Pad images [B, C, H, W] with zeros on all sides and cut a window of the original size out of each.

    Its first row and column in the padded image are the shift [B, 2], 0 … 2·padding.
    """
    examples, channels, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    down, across = padded.shape[2:]
    plane, row = (torch.arange(count, device=images.device) for count in (examples * channels, height))
    first = shift[:, 0] * across + shift[:, 1]
    starts = plane.view(examples, channels, 1) * (down * across) + first[:, None, None] + row * across
    # Rows of windows are consecutive in memory, so that selecting them copies memory and not single pixels.
    rows = padded.flatten().unfold(0, width, 1)
    return rows.index_select(0, starts.flatten()).view(images.shape)


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the chosen [B] of the images [B, C, H, W] left and right."""
    rows = torch.arange(len(images), device=images.device)
    # Selecting whole images copies memory; `torch.where` looks at each pixel.
    return torch.cat([images, images.flip(-1)]).index_select(0, rows + len(images) * chosen)


def cutout(images: Tensor, centre: Tensor, side: int) -> Tensor:
    """Set one square of each normalized image to zero, which is the training set's mean.

    The square is ``side`` pixels wide and starts side // 2 before its centre [B, 2] (row, column), which lies
    anywhere in the image; the part outside the image is cut off (DeVries & Taylor 2017, section 3).
    """
    first = centre - side // 2
    rows, columns = (
        (pixel >= first[:, axis, None]) & (pixel < first[:, axis, None] + side)
        for axis, pixel in enumerate(torch.arange(n, device=images.device) for n in images.shape[-2:])
    )
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def mixup(images: Tensor, labels: Tensor, weight: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mix each of the examples [B + 1] with the next, which is a random example in a shuffled epoch.

    x̃ = λ·x + (1 − λ)·x′ and ỹ = λ·y + (1 − λ)·y′ (Zhang et al. 2017, Eq. 1), with a λ for each, the weight [B].

    Returns:
        Mixed images [B, …] and targets [B, classes], both float.
    """
    shares = weight.view(-1, *(1,) * (images.ndim - 1))
    mixed = torch.lerp(images[1:], images[:-1], shares)
    targets = torch.zeros(len(weight), classes, dtype=images.dtype, device=images.device)
    targets.scatter_add_(1, labels[:-1, None], weight[:, None])
    targets.scatter_add_(1, labels[1:, None], 1 - weight[:, None])
    return mixed, targets
