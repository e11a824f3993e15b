"""Sets of 32×32 colour images: CIFAR and Street View House Numbers, from official files, Parquet, or a download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from normless.data.downloads import fetch_images, find_or_fetch
from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.parquet_images import read_parquet
from normless.data.images.restricted_unpickling import read_batch
from normless.data.images.tensor_images import Split, Splits, TensorImages, checked_split
from normless.errors import DataFormatError

SIDE = 32
IMAGE_SHAPE = (3, SIDE, SIDE)


def cifar10(*, root: Path, download: bool, side: int = SIDE) -> ImageData:
    """CIFAR-10 (Krizhevsky 2009) from ``cifar-10-batches-py``, from Parquet, or by download.

    ``side`` 16 or 8 averages the pixels of squares, for smaller images.

    Raises:
        ValueError: the side does not divide 32.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return _load(_CIFAR10, root, download=download, side=side)


def cifar100(*, root: Path, download: bool, coarse: bool = False, side: int = SIDE) -> ImageData:
    """CIFAR-100 (Krizhevsky 2009) from ``cifar-100-python``, from Parquet, or by download.

    ``coarse`` takes the 20 superclasses in place of the 100 classes; ``side`` and the errors are those of `cifar10`.
    """
    return _load(_CIFAR100_COARSE if coarse else _CIFAR100, root, download=download, side=side)


def svhn(*, root: Path, download: bool, side: int = SIDE) -> ImageData:
    """Street View House Numbers (Netzer et al. 2011), cropped digits, without the set 'extra'.

    From ``train_32x32.mat`` and ``test_32x32.mat``, Parquet, or by download; otherwise as `cifar10`.
    """
    return _load(_SVHN, root, download=download, side=side)


@dataclass(frozen=True)
class Recipe:
    """Where one of the sets is: official files (in words, a reader, a download), folders and columns of Parquet."""

    name: str
    classes: int
    layout: str
    read_official: Callable[[Path], Splits | None]
    fetch: Callable[[Path], None]
    parquet_folders: tuple[str, ...]
    label_columns: tuple[str, ...]
    default_augmentation: Augmentation


def _load(recipe: Recipe, root: Path, *, download: bool, side: int) -> ImageData:
    """The set with its images averaged to `side` pixels."""
    if not isinstance(side, int) or side < 1 or SIDE % side:
        raise ValueError(f"The side of {recipe.name}'s images must divide their {SIDE} pixels, got {side!r}.")
    splits, source = find_or_fetch(
        recipe.name,
        root,
        partial(_find, recipe),
        recipe.fetch,
        layout=f"its official files ({recipe.layout}) or Parquet files (*train*.parquet and *test*.parquet)",
        download=download,
    )
    if side != SIDE:
        splits = Splits(*(_averaged(split, side) for split in splits))
        source = f"{source}, averaged to {side}×{side}"
    return TensorImages(
        splits,
        name=recipe.name,
        classes=recipe.classes,
        source=source,
        default_augmentation=recipe.default_augmentation,
    )


def _find(recipe: Recipe, folders: Sequence[Path]) -> tuple[Splits, str] | None:
    """The sets of the first folder with official files, else of the first with Parquet files."""
    for folder in folders:
        splits = recipe.read_official(folder)
        if splits is not None:
            return splits, "official files"
    for place in (folder / below for folder in folders for below in (".", *recipe.parquet_folders)):
        stored = read_parquet(
            place, recipe.name, classes=recipe.classes, image_shape=IMAGE_SHAPE, label_columns=recipe.label_columns
        )
        if stored is not None:
            return stored
    return None


def _averaged(split: Split, side: int) -> Split:
    """The same images with smaller sides: means over squares, rounded to bytes."""
    means = [F.adaptive_avg_pool2d(part.float(), side) for part in torch.split(split.images, 1000)]
    return Split(torch.cat([mean.round().to(torch.uint8) for mean in means]), split.labels)


def _read_cifar(
    folder: Path, *, inner: str, train: tuple[str, ...], test: str, label_key: str, classes: int
) -> Splits | None:
    """Read the batches in ``folder/inner`` or the folder itself; None where neither has them."""
    for place in (folder / inner, folder):
        if (place / train[0]).is_file() and (place / test).is_file():
            return Splits(
                _read_batches(place, train, label_key, classes), _read_batches(place, (test,), label_key, classes)
            )
    return None


def _read_batches(place: Path, files: tuple[str, ...], label_key: str, classes: int) -> Split:
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


def _cifar(name: str, inner: str, train: tuple[str, ...], test: str, label: str, classes: int) -> Recipe:
    torchvision_name = name.upper()
    return Recipe(
        name=name,
        classes=classes,
        layout=f"{inner}/ with {' … '.join(dict.fromkeys((train[0], train[-1])))} and {test}",
        read_official=partial(
            _read_cifar, inner=inner, train=train, test=test, label_key=f"{label}s", classes=classes
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


def _read_svhn(folder: Path) -> Splits | None:
    train, test = folder / "train_32x32.mat", folder / "test_32x32.mat"
    if not (train.is_file() and test.is_file()):
        return None
    return Splits(_read_matlab(train), _read_matlab(test))


def _read_matlab(path: Path) -> Split:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
    # SciPy raises whatever a damaged file leads to.
    except Exception as error:
        raise DataFormatError(f"{path} is not a MATLAB file: {error}.") from error
    pixels, labels = content.get("X"), content.get("y")
    channels, height, width = IMAGE_SHAPE
    if pixels is None or pixels.dtype != np.uint8 or pixels.shape[:-1] != (height, width, channels):
        raise DataFormatError(f"{path} holds no array X of bytes with the shape 32×32×3×N.")
    if labels is None or labels.dtype.kind not in "iu" or not np.isin(labels, range(1, 11)).all():
        raise DataFormatError(f"{path} holds no array y of whole numbers from 1 to 10.")
    # The files write the digit 0 as 10.
    return checked_split(pixels.transpose(3, 2, 0, 1), labels.ravel() % 10, classes=10, origin=str(path))


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = _cifar("cifar10", "cifar-10-batches-py", _BATCHES, "test_batch", "label", 10)
_CIFAR100 = _cifar("cifar100", "cifar-100-python", ("train",), "test", "fine_label", 100)
_CIFAR100_COARSE = _cifar("cifar100", "cifar-100-python", ("train",), "test", "coarse_label", 20)
_SVHN = Recipe(
    name="svhn",
    classes=10,
    layout="train_32x32.mat and test_32x32.mat",
    read_official=_read_svhn,
    fetch=partial(fetch_images, files=lambda sets: [sets.SVHN.split_list[part] for part in ("train", "test")]),
    parquet_folders=("data", "cropped_digits"),
    label_columns=("label", "labels"),
    default_augmentation=Augmentation(),
)
