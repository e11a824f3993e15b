"""Images decoded from their files by worker processes while the device trains."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from normless.data.epoch_randomness import Draws
from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.errors import DataFormatError
from normless.extras import import_extra
from normless.machine import available_cores

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

MOST_WORKERS = 8

# An example and the seed of its crop.
_Key = tuple[int, int]


class Files(NamedTuple):
    """Paths of images, and the label of each."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]

    def take(self, rows: Tensor) -> Files:
        """The files at some rows [M]."""
        chosen = rows.tolist()
        return Files(tuple(self.paths[row] for row in chosen), tuple(self.labels[row] for row in chosen))


class Listing(NamedTuple):
    """The files of a data set: of training, of test, and the number of classes."""

    train: Files
    test: Files
    classes: int


@dataclass(frozen=True)
class CropSizes:
    """How files of any size become images of one size; see `image_folder` for the fields."""

    size: int = 224
    resize: int = 256
    scale: tuple[float, float] = (0.08, 1.0)

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize:
            raise ValueError(f"Expected 1 ≤ size ≤ resize, got size={self.size}, resize={self.resize}.")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale is 0 < least ≤ greatest ≤ 1 of an image's area, got {self.scale}.")


class FileImages(ImageData):
    """Images read from files as they are needed, by torch's DataLoader.

    Each training image's crop is drawn from a seed of its own, so it does not depend on which worker decodes
    it. Flip, cutout and mixup happen on the device.
    """

    def __init__(self, listing: Listing, *, name: str, source: str, sizes: CropSizes, workers: int | None) -> None:
        super().__init__(
            name=name,
            classes=listing.classes,
            image_shape=(3, sizes.size, sizes.size),
            source=source,
            default_augmentation=Augmentation(flip=True),
            mean=torch.tensor(IMAGENET_MEAN),
            std=torch.tensor(IMAGENET_STD),
            full=255.0,
            labels=(torch.tensor(listing.train.labels), torch.tensor(listing.test.labels)),
        )
        self._train, self._test = listing.train, listing.test
        self._sizes = sizes
        self._workers = workers
        self._random_crop, self._centre_crop = _transforms(sizes)

    def _check_augmentation(self, augmentation: Augmentation) -> None:
        if augmentation.crop:
            raise ValueError(
                f"{self.name} already crops at random, with RandomResizedCrop; "
                f"crop must be 0, got {augmentation.crop}."
            )
        super()._check_augmentation(augmentation)

    def _training_images(
        self, draws: Draws, steps: list[Tensor], augmentation: Augmentation, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order, seeds = draws.order.tolist(), draws.seed.tolist()
        keys = [[(order[row], seeds[row]) for row in rows.tolist()] for rows in steps]
        return self._load(_Decoder(self._train, self._random_crop), keys, device)

    def _testing_images(self, steps: list[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        keys = [[(row, 0) for row in rows.tolist()] for rows in steps]
        return self._load(_Decoder(self._test, self._centre_crop), keys, device)

    def _load(
        self, decoder: _Decoder, keys: list[list[_Key]], device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        loader: DataLoader[Any] = DataLoader(
            decoder,
            batch_sampler=keys,
            num_workers=min(MOST_WORKERS, available_cores()) if self._workers is None else self._workers,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from the global one
        )
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def _restricted(self, train_rows: Tensor, test_rows: Tensor, *, source: str) -> FileImages:
        return FileImages(
            Listing(self._train.take(train_rows), self._test.take(test_rows), self.classes),
            name=self.name,
            source=source,
            sizes=self._sizes,
            workers=self._workers,
        )

    def _checksum(self) -> str:
        """Of the files' names, lengths and labels: reading every image would take hours on ImageNet."""
        digest = hashlib.sha256()
        for path, label in (pair for files in (self._train, self._test) for pair in zip(*files, strict=True)):
            file = Path(path)
            digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size} {label}\n".encode())
        return f"sha256 of file names, lengths and labels {digest.hexdigest()[:12]}"


class _Decoder(Dataset[tuple[Tensor, int]]):
    """Decodes one file: image [3, size, size] as bytes, and its label."""

    def __init__(self, files: Files, transform: Callable[[Image.Image], Tensor]) -> None:
        self.files = files
        self.transform = transform

    def __getitem__(self, key: _Key) -> tuple[Tensor, int]:
        index, seed = key
        path = self.files.paths[index]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        # Pillow raises errors of many kinds for damaged files.
        except Exception as error:
            raise DataFormatError(f"Cannot decode {path}: {error}.") from error
        # torchvision draws from the global generator: it gets this example's seed, and its own state back.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.transform(image), self.files.labels[index]


def _transforms(sizes: CropSizes) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    v2 = import_extra("zoo", "Cropping image files", "torchvision.transforms.v2")
    training = v2.Compose([v2.RandomResizedCrop(sizes.size, scale=sizes.scale), v2.PILToTensor()])
    testing = v2.Compose([v2.Resize(sizes.resize), v2.CenterCrop(sizes.size), v2.PILToTensor()])
    return training, testing
