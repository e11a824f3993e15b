"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32×32."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from normless.data.downloads import fetch_images
from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.restricted_unpickling import read_batch
from normless.data.images.small_images import IMAGE_SHAPE, Recipe, load_small_images
from normless.data.images.tensor_images import Split, Splits, checked_split
from normless.errors import DataFormatError


def cifar10(*, root: Path, download: bool, side: int = 32) -> ImageData:
    """CIFAR-10 (Krizhevsky 2009) from ``cifar-10-batches-py``, from Parquet, or by download.

    ``side`` 16 or 8 averages the pixels of squares, for smaller images.

    Raises:
        ValueError: the side does not divide 32.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_small_images(_CIFAR10, root, download=download, side=side)


def cifar100(*, root: Path, download: bool, coarse: bool = False, side: int = 32) -> ImageData:
    """CIFAR-100 (Krizhevsky 2009) from ``cifar-100-python``, from Parquet, or by download.

    ``coarse`` takes the 20 superclasses in place of the 100 classes; ``side`` is as in `cifar10`.

    Raises:
        ValueError: the side does not divide 32.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_small_images(_CIFAR100_COARSE if coarse else _CIFAR100, root, download=download, side=side)


def _read_official(
    folder: Path, *, inner: str, train: tuple[str, ...], test: str, label_key: str, classes: int
) -> Splits | None:
    """Read the batches in ``folder/inner`` or the folder itself; None where neither has them."""
    for place in (folder / inner, folder):
        if (place / train[0]).is_file() and (place / test).is_file():
            return Splits(
                _read_split(place, train, label_key, classes), _read_split(place, (test,), label_key, classes)
            )
    return None


def _read_split(place: Path, files: tuple[str, ...], label_key: str, classes: int) -> Split:
    pixels, labels = [], []
    for path in (place / file for file in files):
        if not path.is_file():
            raise DataFormatError(f"{place} lacks {path.name}; its copy of the data set is incomplete.")
        batch = read_batch(path)
        data, values = batch.get("data"), batch.get(label_key)
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != np.prod(IMAGE_SHAPE):
            raise DataFormatError(f"{path} has no 'data' with a row of 3072 bytes for each image.")
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise DataFormatError(f"{path} has no list of numbers named {label_key!r}.")
        pixels.append(data.reshape(-1, *IMAGE_SHAPE))
        labels.extend(values)
    return checked_split(
        np.concatenate(pixels), np.array(labels), classes=classes, origin=f"{place} ({', '.join(files)})"
    )


def _recipe(name: str, inner: str, train: tuple[str, ...], test: str, label: str, classes: int) -> Recipe:
    torchvision_name = name.upper()
    return Recipe(
        name=name,
        classes=classes,
        layout=f"{inner}/ with {' … '.join(dict.fromkeys((train[0], train[-1])))} and {test}",
        read_official=partial(
            _read_official, inner=inner, train=train, test=test, label_key=f"{label}s", classes=classes
        ),
        fetch=partial(
            fetch_images,
            files=lambda datasets: [
                (known.url, known.filename, known.tgz_md5) for known in (getattr(datasets, torchvision_name),)
            ],
        ),
        parquet_folders=("data", "plain_text", "cifar100"),
        label_columns=(label, f"{label}s", *(("label", "labels") if label == "fine_label" else ())),
        default_augmentation=Augmentation(crop=4, flip=True),
    )


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = _recipe("cifar10", "cifar-10-batches-py", _BATCHES, "test_batch", "label", 10)
_CIFAR100 = _recipe("cifar100", "cifar-100-python", ("train",), "test", "fine_label", 100)
_CIFAR100_COARSE = _recipe("cifar100", "cifar-100-python", ("train",), "test", "coarse_label", 20)
