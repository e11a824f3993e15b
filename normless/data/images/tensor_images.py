"""Image sets small enough for the device's memory, as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normless.data.epoch_randomness import Draws
from normless.data.images.augmentation import Augmentation, crop
from normless.data.images.image_data import ImageData
from normless.errors import DataFormatError


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


class Splits(NamedTuple):
    """A training and a test set."""

    train: Split
    test: Split


def checked_split(images: NDArray[Any], labels: NDArray[Any], *, classes: int, origin: str) -> Split:
    """Make a split of arrays read from a file."""
    if len(images) == 0 or labels.shape != (len(images),):
        raise DataFormatError(
            f"{origin} holds {len(images)} images and labels of shape {labels.shape}; expected one each."
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise DataFormatError(
            f"{origin} has labels from {labels.min()} to {labels.max()}; expected 0 to {classes - 1}. "
            "Is it a different data set?"
        )
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64)))


class TensorImages(ImageData):
    """Images stored on the device that trains; a batch is a few operations on all its images at once.

    Without ``statistics`` the mean and standard deviation of each channel are those of the training set (all
    pixels of all images, population formula); a channel that never varies is divided by 1.
    """

    def __init__(
        self,
        splits: Splits,
        *,
        name: str,
        classes: int,
        source: str,
        default_augmentation: Augmentation,
        statistics: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        mean, std = _channel_statistics(splits.train.images) if statistics is None else statistics
        super().__init__(
            name=name,
            classes=classes,
            image_shape=tuple(splits.train.images.shape[1:]),
            source=source,
            default_augmentation=default_augmentation,
            mean=mean,
            std=std,
            full=1.0 if splits.train.images.is_floating_point() else 255.0,
            labels=(splits.train.labels, splits.test.labels),
        )
        self._splits = splits
        self._resident: dict[torch.device, Splits] = {torch.device("cpu"): splits}

    def _training_images(
        self, draws: Draws, steps: list[Tensor], augmentation: Augmentation, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        train = self._on(device).train
        for rows in steps:
            images, labels = train.take(draws.order[rows])
            if draws.shift is not None:
                images = crop(images, draws.shift[rows], augmentation.crop)
            yield images, labels

    def _testing_images(self, steps: list[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        test = self._on(device).test
        return (test.take(rows) for rows in steps)

    def _on(self, device: torch.device) -> Splits:
        if device not in self._resident:
            self._resident[device] = Splits(self._splits.train.to(device), self._splits.test.to(device))
        return self._resident[device]

    def _restricted(self, train_rows: Tensor, test_rows: Tensor, *, source: str) -> TensorImages:
        return TensorImages(
            Splits(self._splits.train.take(train_rows), self._splits.test.take(test_rows)),
            name=self.name,
            classes=self.classes,
            source=source,
            default_augmentation=self.default_augmentation,
            statistics=(self.mean, self.std),
        )

    def _checksum(self) -> str:
        digest = hashlib.sha256()
        for split in self._splits:
            for values in split:
                digest.update(values.numpy().data)
        return f"sha256 {digest.hexdigest()[:12]}"


def _channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [C] of bytes [N, C, H, W] over N, H and W, exact, in units of 255."""
    assert images.dtype == torch.uint8
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    shares = counts / counts.sum(1, keepdim=True)
    value = torch.linspace(0, 1, 256, dtype=torch.float64)
    mean = shares @ value
    std = (shares * (value - mean[:, None]).square()).sum(1).sqrt()
    return mean.float(), std.where(std > 1e-12, torch.ones_like(std)).float()
