"""Random crop, flip, cutout and mixup of a whole batch at once, and every random choice of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
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


class Draws(NamedTuple):
    """The random choices of N examples; None for choices that the augmentation does not make.

    Attributes:
        order: [N] int64, which example of the training set comes at each position.
        seed: [N] int64, a seed for a transformation that draws for itself (cropping image files).
        shift: [N, 2] int64, row and column of the crop in the padded image, 0 … 2·padding.
        flip: [N] bool, whether to mirror left and right.
        hole: [N, 2] int64, row and column of the centre of the cutout.
        weight: [N] float32, the share λ of the example itself in its mixture.
    """

    order: Tensor
    seed: Tensor
    shift: Tensor | None = None
    flip: Tensor | None = None
    hole: Tensor | None = None
    weight: Tensor | None = None

    def to(self, device: torch.device) -> Draws:
        """Return the same draws on another device."""
        return self._each(lambda values: values.to(device))

    def take(self, positions: Tensor) -> Draws:
        """Return the draws at some positions [M] of the epoch."""
        return self._each(lambda values: values.index_select(0, positions))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Draws:
        return Draws(**{name: change(values) for name, values in self._asdict().items() if values is not None})


def check_share(rank: int, world_size: int, batch_size: int = 1) -> None:
    """Refuse batches without examples, and the rank of a process that does not exist."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be 0 to world_size − 1 = {world_size - 1}, got {rank}.")


def epoch_sequence(seed: int, epoch: int) -> np.random.SeedSequence:
    """Return the source of all random choices of an epoch (from 0): `SeedSequence(seed, spawn_key=(epoch,))`.

    It mixes the two numbers, so that (0, 1) and (1, 0) are independent.
    """
    if seed < 0 or epoch < 0:
        raise ValueError(f"seed and epoch must not be negative, got seed={seed}, epoch={epoch}.")
    return np.random.SeedSequence(seed, spawn_key=(epoch,))


def draw_epoch(
    seed: int, epoch: int, *, examples: int, image_shape: tuple[int, ...], augmentation: Augmentation
) -> Draws:
    """Draw one epoch, a pure function of the arguments; the streams are the children of `epoch_sequence`."""
    children = epoch_sequence(seed, epoch).spawn(6)
    order, seeds, shift, flip, hole, weight = (np.random.default_rng(child) for child in children)
    draws: dict[str, NDArray[Any]] = {
        "order": order.permutation(examples),
        "seed": seeds.integers(2**62, size=examples),
    }
    if augmentation.crop:
        draws["shift"] = shift.integers(2 * augmentation.crop + 1, size=(examples, 2))
    if augmentation.flip:
        draws["flip"] = flip.random(examples) < 0.5
    if augmentation.cutout:
        draws["hole"] = hole.integers(image_shape[-2:], size=(examples, 2))
    if augmentation.mixup:
        draws["weight"] = weight.beta(augmentation.mixup, augmentation.mixup, size=examples).astype(np.float32)
    return Draws(**{name: torch.from_numpy(values) for name, values in draws.items()})
