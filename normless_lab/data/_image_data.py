"""Sets of labelled images: their sizes, the batches of an epoch, and images small enough for the device's memory."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normless.errors import DataFormatError
from normless_lab.data._augmentation import Augmentation, Draws, check_share, crop, cutout, draw_epoch, flip, mixup


class Batch(NamedTuple):
    """Examples as a network takes them.

    Attributes:
        inputs: float32 [B, C, H, W], normalized per channel.
        targets: int64 [B], the classes, or with mixup float32 [B, classes], their shares.
    """

    inputs: Tensor
    targets: Tensor


class Examples(Protocol):
    """Images, in memory or in files, and their classes."""

    @property
    def labels(self) -> Tensor:
        """int64 [N], on the CPU."""

    def take(self, rows: Tensor) -> Self:
        """The examples at some rows [M]."""


@dataclass(kw_only=True, eq=False, repr=False)
class ImageData(ABC):
    """A training and a test set of labelled images, all of one shape.

    Inputs are normalized per channel with `mean` and `std`. Order and augmentation of an epoch are a pure function of
    (seed, epoch), the same on every device and for any number of processes; the global generators are not used.

    Attributes:
        name: the name for `load_data`.
        classes: number of classes.
        image_shape: (C, H, W); (features,) for vectors.
        source: where the examples come from, in words.
        train, test: the examples.
        mean, std: [C], in units of `full`.
        full: the stored value of white: 255 for bytes, else 1.
        default_augmentation: the papers' augmentation of this set.
    """

    kind: ClassVar[str] = "labelled images"
    parts: ClassVar[tuple[str, ...]] = ("train", "test")
    reader: ClassVar[str] = "image_folder"

    name: str
    classes: int
    image_shape: tuple[int, ...]
    source: str
    train: Examples
    test: Examples
    mean: Tensor
    std: Tensor
    full: float = 255.0
    default_augmentation: Augmentation = field(default_factory=Augmentation)

    @property
    def test_labels(self) -> Tensor:
        """int64 [M], on the CPU."""
        return self.test.labels

    @property
    def train_size(self) -> int:
        """Number of training examples."""
        return len(self.train.labels)

    @property
    def test_size(self) -> int:
        """Number of test examples."""
        return len(self.test.labels)

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: name, source, sizes, shape and checksum."""
        shape = "×".join(map(str, self.image_shape))
        return (
            f"{self.name}: {self.source}; {self.train_size} train / {self.test_size} test, "
            f"{self.classes} classes, {shape}; {self._checksum()}"
        )

    def steps_per_epoch(self, batch_size: int) -> int:
        """Number of training batches in an epoch: the whole ones, or one if the set is smaller than a batch."""
        return max(1, self.train_size // batch_size)

    def subset(self, *, train: int | None = None, test: int | None = None) -> ImageData:
        """Return the same set with fewer examples, with its classes in proportion.

        The choice depends on the labels and sizes alone, and a smaller subset is part of a larger one. Normalization
        stays that of the whole training set.

        Raises:
            ValueError: a size is below 1 or above the number of examples.
        """
        kept: list[Examples] = []
        sizes = []
        for part, size, examples in (("train", train, self.train), ("test", test, self.test)):
            whole = len(examples.labels)
            size = whole if size is None else size
            if not 1 <= size <= whole:
                raise ValueError(f"A subset of {self.name} has 1 to {whole} {part} examples, not {size}.")
            kept.append(examples.take(_proportional(examples.labels, size)))
            sizes.append(f"{size} of {whole} {part}")
        source = f"{self.source}, subset of {' and '.join(sizes)}"
        return replace(self, train=kept[0], test=kept[1], source=source)

    def train_batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        augmentation: Augmentation,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[Batch]:
        """The batches of one epoch of training, in random order.

        Process ``rank`` of ``world_size`` receives its consecutive part of every batch of ``batch_size`` examples.
        The last incomplete batch is dropped; a set smaller than a batch is one batch.

        Raises:
            ValueError: the batch cannot be shared evenly, the rank does not exist, seed or epoch is negative, or the
                augmentation does not apply to these images.
        """
        check_share(rank, world_size, batch_size)
        whole = min(batch_size, self.train_size)
        if whole % world_size:
            raise ValueError(f"A batch of {whole} cannot be shared evenly by {world_size} processes.")
        self._check_augmentation(augmentation)
        device = torch.empty(0, device=device).device
        draws = draw_epoch(
            seed, epoch, examples=self.train_size, image_shape=self.image_shape, augmentation=augmentation
        ).to(device)
        share = whole // world_size
        # Mixup mixes each example with the next of the whole batch, so a part needs one example more.
        rows = torch.arange(share + (augmentation.mixup > 0), device=device).add_(rank * share) % whole
        steps = [rows + step * whole for step in range(self.steps_per_epoch(batch_size))]
        return self._train_batches(draws, steps, augmentation, device)

    def test_batches(
        self, batch_size: int, *, device: torch.device | str = "cpu", rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Every test example once, in the stored order, without augmentation.

        Process ``rank`` of ``world_size`` receives its consecutive part of each batch; parts may differ in size by
        one, and empty ones are left out. A batch size below 1 and a rank that does not exist raise a ValueError.
        """
        check_share(rank, world_size, batch_size)
        device = torch.empty(0, device=device).device
        rows = torch.arange(self.test_size, device=device)
        steps = [
            rows[start : start + batch_size].tensor_split(world_size)[rank]
            for start in range(0, len(rows), batch_size)
        ]
        normalized = self._normalizer(device)
        raw = self._testing_images([step for step in steps if len(step)], device)
        return (Batch(normalized(images), labels) for images, labels in raw)

    def _train_batches(
        self, draws: Draws, steps: list[Tensor], augmentation: Augmentation, device: torch.device
    ) -> Iterator[Batch]:
        normalized = self._normalizer(device)
        at_once = self._steps_at_once(len(steps[0]), device)
        groups = [steps[first : first + at_once] for first in range(0, len(steps), at_once)]
        raw = self._training_images(draws, [torch.cat(group) for group in groups], augmentation, device)
        for group, (images, labels) in zip(groups, raw, strict=True):
            drawn = draws.take(torch.cat(group))
            if drawn.flip is not None:
                images = flip(images, drawn.flip)
            images = normalized(images)
            if drawn.hole is not None:
                images = cutout(images, drawn.hole, augmentation.cutout)
            sizes = [len(rows) for rows in group]
            weights = [None] * len(group) if drawn.weight is None else torch.split(drawn.weight, sizes)
            for batch, targets, weight in zip(
                torch.split(images, sizes), torch.split(labels, sizes), weights, strict=True
            ):
                if weight is None:
                    yield Batch(batch, targets)
                else:
                    yield Batch(*mixup(batch, targets, weight[:-1], self.classes))

    def _steps_at_once(self, batch_size: int, device: torch.device) -> int:
        """Return the number of batches that are augmented together, which is above 1 on a GPU to save launches."""
        return 1

    def _normalizer(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        shape = (-1, *(1,) * (len(self.image_shape) - 1))
        mean, std = ((values * self.full).view(shape).to(device) for values in (self.mean, self.std))
        return lambda images: images.to(torch.float32, copy=True).sub_(mean).div_(std)

    def _check_augmentation(self, augmentation: Augmentation) -> None:
        pixels = [name for name in ("crop", "flip", "cutout") if getattr(augmentation, name)]
        if pixels and len(self.image_shape) != 3:
            raise ValueError(
                f"{' and '.join(pixels)} need images (C, H, W), but {self.name} holds vectors of shape "
                f"{self.image_shape}; only mixup applies to them."
            )

    @abstractmethod
    def _training_images(
        self, draws: Draws, steps: list[Tensor], augmentation: Augmentation, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For the positions of each step: raw cropped images [B, C, H, W] on the device, and labels [B]."""

    @abstractmethod
    def _testing_images(self, steps: list[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """For the examples of each step: raw images [B, C, H, W] on the device, and labels [B]."""

    @abstractmethod
    def _checksum(self) -> str:
        """A checksum of the examples, in words and hexadecimal digits."""


def _proportional(labels: Tensor, size: int) -> Tensor:
    """Return ascending rows [size]: each class's examples in a fixed random order, in proportion."""
    values = labels.numpy()
    generator = np.random.default_rng(0)
    progress = np.empty(len(values))
    for label in np.unique(values):
        members = generator.permutation(np.flatnonzero(values == label))
        progress[members] = (np.arange(len(members)) + generator.random()) / len(members)
    return torch.from_numpy(np.sort(np.argsort(progress, kind="stable")[:size]))


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
