"""Sets of 32×32 colour images: CIFAR and Street View House Numbers, from official files, Parquet, or a download."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from normless.errors import DataFormatError
from normless_lab.data.downloads import fetch_files, find_or_fetch, first_of
from normless_lab.data.images.augmentation import AUGMENTATIONS, Augmentation
from normless_lab.data.images.cifar_batches import read_batch
from normless_lab.data.images.image_data import ImageData
from normless_lab.data.images.parquet_images import read_parquet
from normless_lab.data.images.tensor_images import Split, checked_split, in_memory

SIDE = 32
IMAGE_SHAPE = (3, SIDE, SIDE)

_PARTS = ("train", "test")
# Folders of Parquet files on the Hugging Face hub.
_HUB_FOLDERS = (".", "data", "plain_text", "cifar100", "cropped_digits")

_Sets = tuple[Split, Split]


def cifar10(*, root: Path, download: bool, side: int = SIDE) -> ImageData:
    """CIFAR-10 (Krizhevsky 2009) from ``cifar-10-batches-py``, from Parquet, or by download.

    ``side`` 16 or 8 averages the pixels of squares, for smaller images; it must divide 32, else a ValueError is
    raised.
    """
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    read = partial(
        _read_cifar, folder="cifar-10-batches-py", parts=(batches, ["test_batch"]), key="labels", classes=10
    )
    layout = "cifar-10-batches-py/ with data_batch_1 … data_batch_5 and test_batch"
    return _load("cifar10", root, download, side, 10, read, layout, ("label", "labels"))


def cifar100(*, root: Path, download: bool, coarse: bool = False, side: int = SIDE) -> ImageData:
    """CIFAR-100 (Krizhevsky 2009) from ``cifar-100-python``, from Parquet, or by download.

    ``coarse`` uses the 20 superclasses instead of the 100 classes; ``side`` is that of `cifar10`.
    """
    columns = ("coarse_label", "coarse_labels") if coarse else ("fine_label", "fine_labels", "label", "labels")
    classes = 20 if coarse else 100
    parts = (["train"], ["test"])
    read = partial(_read_cifar, folder="cifar-100-python", parts=parts, key=columns[1], classes=classes)
    layout = "cifar-100-python/ with train and test"
    return _load("cifar100", root, download, side, classes, read, layout, columns)


def svhn(*, root: Path, download: bool, side: int = SIDE, extra: bool = False) -> ImageData:
    """Street View House Numbers (Netzer et al. 2011), cropped digits.

    From ``train_32x32.mat`` and ``test_32x32.mat``, Parquet, or by download; otherwise as `cifar10`. With `extra` the
    531,131 simpler images of ``extra_32x32.mat`` are training images too; it needs the official files.
    """
    files = [f"{part}_32x32.mat" for part in (*_PARTS, *(["extra"] if extra else []))]
    layout = ", ".join(files)
    return _load(
        "svhn", root, download, side, 10, partial(_read_svhn, files), layout, ("label", "labels"), extra=extra
    )


def _load(
    name: str,
    root: Path,
    download: bool,
    side: int,
    classes: int,
    read_official: Callable[[Path], _Sets | None],
    layout: str,
    label_columns: tuple[str, ...],
    extra: bool = False,
) -> ImageData:
    """Return the set from official files (`layout` in words), else from Parquet, averaged to `side` pixels."""
    if not isinstance(side, int) or side < 1 or SIDE % side:
        raise ValueError(f"The side of {name}'s images must divide their {SIDE} pixels, got {side!r}.")

    def official(folder: Path) -> tuple[_Sets, str] | None:
        sets = read_official(folder)
        return None if sets is None else (sets, "official files")

    def parquet(folder: Path) -> tuple[_Sets, str] | None:
        read = partial(read_parquet, name=name, classes=classes, image_shape=IMAGE_SHAPE, label_columns=label_columns)
        return first_of(read, (folder / below for below in _HUB_FOLDERS))

    layout = f"its official files ({layout})"
    layout += "" if extra else " or Parquet files (*train*.parquet and *test*.parquet)"
    fetch = partial(_fetch, name, extra)
    readers = (official,) if extra else (official, parquet)
    (train, test), source = find_or_fetch(name, root, readers, fetch, layout=layout, download=download)
    if side != SIDE:
        train, test = _averaged(train, side), _averaged(test, side)
        source = f"{source}, averaged to {side}×{side}"
    own = AUGMENTATIONS.get(name, Augmentation())
    return in_memory(name, source, train, test, classes=classes, default_augmentation=own)


def _fetch(name: str, extra: bool, folder: Path) -> None:
    """Download the official files, whose addresses and digests torchvision knows."""
    from torchvision import datasets

    known = getattr(datasets, name.upper())
    cifar = name != "svhn"
    parts = (*_PARTS, "extra") if extra else _PARTS
    files = [(known.url, known.filename, known.tgz_md5)] if cifar else [known.split_list[part] for part in parts]
    for url, file, digest in files:
        fetch_files(folder, url.removesuffix(file), {file: digest})


def _averaged(split: Split, side: int) -> Split:
    """Return the same images with smaller sides: means over squares, rounded to bytes."""
    means = [F.adaptive_avg_pool2d(part.float(), side) for part in torch.split(split.images, 1000)]
    return Split(torch.cat([mean.round().to(torch.uint8) for mean in means]), split.labels)


def _read_cifar(place: Path, folder: str, parts: tuple[list[str], list[str]], key: str, classes: int) -> _Sets | None:
    """Read the batches of both parts in a folder, or in one within it; return None without their first files."""
    for within in (place / folder, place):
        if all((within / batches[0]).is_file() for batches in parts):
            return _read_batches(within, parts[0], key, classes), _read_batches(within, parts[1], key, classes)
    return None


def _read_batches(place: Path, files: list[str], label_key: str, classes: int) -> Split:
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
    origin = f"{place} ({', '.join(files)})"
    return checked_split(np.concatenate(pixels), np.array(labels), classes=classes, origin=origin)


def _read_svhn(files: list[str], folder: Path) -> _Sets | None:
    """Read the official files of a folder, whose digests torchvision compares; return None without them."""
    if not all((folder / file).is_file() for file in files):
        return None
    from torchvision.datasets import SVHN

    try:
        parts = {file: SVHN(str(folder), file.partition("_")[0]) for file in files}
    except RuntimeError as error:
        raise DataFormatError(f"A file {' or '.join(files)} in {folder} has the wrong digest.") from error
    train, test, *extra = (
        checked_split(part.data, part.labels, classes=10, origin=f"{folder} ({file})") for file, part in parts.items()
    )
    for part in extra:
        train = Split(torch.cat([train.images, part.images]), torch.cat([train.labels, part.labels]))
    return train, test
