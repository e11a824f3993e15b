"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images of 32×32."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from normless.data.images.augmentation import Augmentation
from normless.data.downloads import fetch_archive
from normless.data.errors import DataFormatError
from normless.data.images.image_data import ImageData
from normless.data.images.small_images import IMAGE_SHAPE, Recipe, load_small_images
from normless.data.images.tensor_images import Split, Splits, checked_split
from normless.data.images.restricted_unpickling import read_batch

_AUGMENTATION = Augmentation(crop=4, flip=True)


def cifar10(*, root: Path, download: bool, side: int = 32) -> ImageData:
    """Load CIFAR-10 from ``cifar-10-batches-py``, from Parquet, or by download.

    ``side`` 16 or 8 averages the pixels of squares, for smaller images.

    Raises:
        ValueError: the side does not divide 32.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_small_images(_CIFAR10, root, download=download, side=side)


def cifar100(*, root: Path, download: bool, coarse: bool = False, side: int = 32) -> ImageData:
    """Load CIFAR-100 from ``cifar-100-python``, from Parquet, or by download.

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
            raise DataFormatError(f"{path} holds no 'data' with a row of 3072 bytes for each image.")
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise DataFormatError(f"{path} holds no list of numbers named {label_key!r}.")
        pixels.append(data.reshape(-1, *IMAGE_SHAPE))
        labels.extend(values)
    return checked_split(
        np.concatenate(pixels), np.array(labels), classes=classes, origin=f"{place} ({', '.join(files)})"
    )


_CIFAR10 = Recipe(
    name="cifar10",
    classes=10,
    layout="cifar-10-batches-py/ with data_batch_1 … data_batch_5 and test_batch",
    read_official=partial(
        _read_official,
        inner="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        label_key="labels",
        classes=10,
    ),
    fetch=partial(fetch_archive, "CIFAR10"),
    parquet_folders=("data", "plain_text"),
    label_columns=("label", "labels"),
    default_augmentation=_AUGMENTATION,
)


def _cifar100_recipe(kind: str, classes: int, columns: tuple[str, ...]) -> Recipe:
    return Recipe(
        name="cifar100",
        classes=classes,
        layout="cifar-100-python/ with train and test",
        read_official=partial(
            _read_official,
            inner="cifar-100-python",
            train=("train",),
            test="test",
            label_key=f"{kind}_labels",
            classes=classes,
        ),
        fetch=partial(fetch_archive, "CIFAR100"),
        parquet_folders=("data", "cifar100"),
        label_columns=(f"{kind}_label", f"{kind}_labels", *columns),
        default_augmentation=_AUGMENTATION,
    )


_CIFAR100 = _cifar100_recipe("fine", 100, ("label", "labels"))
_CIFAR100_COARSE = _cifar100_recipe("coarse", 20, ())
