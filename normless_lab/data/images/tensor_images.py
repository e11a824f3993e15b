"""Image sets small enough for the device's memory, as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normless.errors import DataFormatError
from normless_lab.data.epoch_randomness import Draws
from normless_lab.data.images.augmentation import Augmentation, crop
from normless_lab.data.images.image_data import ImageData

# Values (pixels of all channels) that are augmented together on a GPU: 64 MiB in single precision.
MOST_AT_ONCE = 2**24


class Split(NamedTuple):
    """Examples: images [N, C, H, W] (or [N, features]), bytes or float32; labels int64 [N]."""

    images: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Split:
        """The examples at some rows [M]."""
        return Split(self.images.index_select(0, rows), self.labels.index_select(0, rows))

    def to(self, device: torch.device) -> Split:
        """The same examples on another device."""
        return Split(self.images.to(device), self.labels.to(device))


def checked_split(images: NDArray[Any], labels: NDArray[Any], *, classes: int, origin: str) -> Split:
    """Return a split of arrays that were read from a file."""
    check_labels(len(images), labels, classes=classes, origin=origin)
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64)))


def check_labels(images: int, labels: NDArray[Any] | Tensor, *, classes: int, origin: str) -> None:
    """Raise a DataFormatError unless there are images, with a label from 0 to `classes` - 1 for each."""
    if images == 0 or tuple(labels.shape) != (images,):
        raise DataFormatError(
            f"{origin} holds {images} images and labels of shape {tuple(labels.shape)}; expected one each."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise DataFormatError(
            f"{origin} has labels from {int(labels.min())} to {int(labels.max())}; expected 0 to {classes - 1}. "
            "Is it a different data set?"
        )


@dataclass(kw_only=True, eq=False, repr=False)
class TensorImages(ImageData):
    """Images stored on the device that trains; a batch is a few operations on all its images at once."""

    train: Split
    test: Split
    _copies: dict[torch.device, tuple[Split, Split]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for part, split in (("training", self.train), ("test", self.test)):
            origin = f"The {part} part of {self.name}"
            check_labels(len(split.images), split.labels, classes=self.classes, origin=origin)

    def _training_images(
        self, draws: Draws, steps: list[Tensor], augmentation: Augmentation, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        train, _ = self._on(device)
        for rows in steps:
            images, labels = train.take(draws.order[rows])
            if draws.shift is not None:
                images = crop(images, draws.shift[rows], augmentation.crop)
            yield images, labels

    def _testing_images(self, steps: list[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        _, test = self._on(device)
        return (test.take(rows) for rows in steps)

    def _steps_at_once(self, batch_size: int, device: torch.device) -> int:
        most = MOST_AT_ONCE // (batch_size * prod(self.image_shape))
        return 1 if device.type == "cpu" else max(1, most)

    def _on(self, device: torch.device) -> tuple[Split, Split]:
        if device not in self._copies:
            self._copies[device] = self.train.to(device), self.test.to(device)
            if device.type == "cuda":
                # Runs on other streams read the same copy.
                torch.cuda.synchronize(device)
        return self._copies[device]

    def _checksum(self) -> str:
        digest = hashlib.sha256()
        for values in (*self.train, *self.test):
            digest.update(values.numpy().data)
        return f"sha256 {digest.hexdigest()[:12]}"


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exact mean and standard deviation [C] of bytes [N, C, H, W] over N, H and W, in units of 255.

    The standard deviation is by the population formula, and 1 for a channel that never varies.
    """
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    shares = counts / counts.sum(1, keepdim=True)
    value = torch.linspace(0, 1, 256, dtype=torch.float64)
    mean = shares @ value
    std = (shares * (value - mean[:, None]).square()).sum(1).sqrt()
    return mean.float(), std.where(std > 1e-12, torch.ones_like(std)).float()


def in_memory(
    name: str,
    source: str,
    train: Split,
    test: Split,
    *,
    classes: int,
    statistics: Callable[[Tensor], tuple[Tensor, Tensor]] = channel_statistics,
    **further: Any,
) -> TensorImages:
    """Return two splits as a set, normalized by the `statistics` of its training images.

    (x / 255 − mean) / std per channel of bytes x [N, C, H, W].

    Args:
        name, source: name and origin of the set, for results.
        train, test: images and classes.
        classes: number of classes.
        statistics: mean and standard deviation [C] of the training images, in units of 255.
        further: other fields of `TensorImages`.
    """
    mean, std = statistics(train.images)
    shape = tuple(train.images.shape[1:])
    common: dict[str, Any] = {"name": name, "classes": classes, "image_shape": shape, "source": source}
    return TensorImages(train=train, test=test, mean=mean, std=std, **common, **further)
