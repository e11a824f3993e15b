"""Sets of 32×32 colour images: CIFAR and Street View House Numbers, from official files, Parquet, or a download.

The pickled batches of CIFAR are read without creating anything but plain data.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from normless.errors import DataFormatError
from normless_lab.data.downloads import Download, fetch_images, find_or_fetch, first_of
from normless_lab.data.images.augmentation import Augmentation
from normless_lab.data.images.image_data import ImageData
from normless_lab.data.images.parquet_images import read_parquet
from normless_lab.data.images.tensor_images import Split, checked_split, in_memory

SIDE = 32
IMAGE_SHAPE = (3, SIDE, SIDE)

_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def cifar10(*, root: Path, download: bool, side: int = SIDE) -> ImageData:
    """CIFAR-10 (Krizhevsky 2009) from ``cifar-10-batches-py``, from Parquet, or by download.

    ``side`` 16 or 8 averages the pixels of squares, for smaller images; it must divide 32, else a ValueError is
    raised.
    """
    files = ("cifar-10-batches-py", _BATCHES, "test_batch")
    return _cifar("cifar10", root, download, side, files, "label", 10)


def cifar100(*, root: Path, download: bool, coarse: bool = False, side: int = SIDE) -> ImageData:
    """CIFAR-100 (Krizhevsky 2009) from ``cifar-100-python``, from Parquet, or by download.

    ``coarse`` uses the 20 superclasses instead of the 100 classes; ``side`` is that of `cifar10`.
    """
    files = ("cifar-100-python", ("train",), "test")
    label, classes = ("coarse_label", 20) if coarse else ("fine_label", 100)
    return _cifar("cifar100", root, download, side, files, label, classes)


def svhn(*, root: Path, download: bool, side: int = SIDE) -> ImageData:
    """Street View House Numbers (Netzer et al. 2011), cropped digits, without the set 'extra'.

    From ``train_32x32.mat`` and ``test_32x32.mat``, Parquet, or by download; otherwise as `cifar10`.
    """
    return _load(
        "svhn",
        root,
        download,
        side,
        _read_svhn,
        lambda sets: [sets.SVHN.split_list[part] for part in ("train", "test")],
        layout="train_32x32.mat and test_32x32.mat",
        classes=10,
        parquet_folders=("data", "cropped_digits"),
        label_columns=("label", "labels"),
        augmentation=Augmentation(),
    )


def _cifar(
    name: str,
    root: Path,
    download: bool,
    side: int,
    files: tuple[str, tuple[str, ...], str],
    label: str,
    classes: int,
) -> ImageData:
    """The set of a folder, the training batches in it, and a test batch."""
    folder, train, test = files

    def downloads(datasets: ModuleType) -> list[Download]:
        known = getattr(datasets, name.upper())
        return [(known.url, known.filename, known.tgz_md5)]

    def read(place: Path) -> tuple[Split, Split] | None:
        if not ((place / train[0]).is_file() and (place / test).is_file()):
            return None
        return _read_batches(place, train, f"{label}s", classes), _read_batches(place, (test,), f"{label}s", classes)

    return _load(
        name,
        root,
        download,
        side,
        lambda place: first_of(read, (place / folder, place)),
        downloads,
        layout=f"{folder}/ with {' … '.join(dict.fromkeys((train[0], train[-1])))} and {test}",
        classes=classes,
        parquet_folders=("data", "plain_text", "cifar100"),
        label_columns=(label, f"{label}s", *(("label", "labels") if label == "fine_label" else ())),
        augmentation=Augmentation(crop=4, flip=True),
    )


def _load(
    name: str,
    root: Path,
    download: bool,
    side: int,
    read_official: Callable[[Path], tuple[Split, Split] | None],
    downloads: Callable[[ModuleType], Iterable[Download]],
    *,
    layout: str,
    classes: int,
    parquet_folders: tuple[str, ...],
    label_columns: tuple[str, ...],
    augmentation: Augmentation,
) -> ImageData:
    """The set from official files (`layout` in words), else from Parquet, averaged to `side` pixels."""
    if not isinstance(side, int) or side < 1 or SIDE % side:
        raise ValueError(f"The side of {name}'s images must divide their {SIDE} pixels, got {side!r}.")

    def official(folder: Path) -> tuple[Split, Split, str] | None:
        sets = read_official(folder)
        return None if sets is None else (*sets, "official files")

    def parquet(folder: Path) -> tuple[Split, Split, str] | None:
        read = partial(read_parquet, name=name, classes=classes, image_shape=IMAGE_SHAPE, label_columns=label_columns)
        return first_of(read, (folder / below for below in (".", *parquet_folders)))

    train, test, source = find_or_fetch(
        name,
        root,
        (official, parquet),
        partial(fetch_images, files=downloads),
        layout=f"its official files ({layout}) or Parquet files (*train*.parquet and *test*.parquet)",
        download=download,
    )
    if side != SIDE:
        train, test = _averaged(train, side), _averaged(test, side)
        source = f"{source}, averaged to {side}×{side}"
    return in_memory(name, source, train, test, classes=classes, default_augmentation=augmentation)


def _averaged(split: Split, side: int) -> Split:
    """Return the same images with smaller sides: means over squares, rounded to bytes."""
    means = [F.adaptive_avg_pool2d(part.float(), side) for part in torch.split(split.images, 1000)]
    return Split(torch.cat([mean.round().to(torch.uint8) for mean in means]), split.labels)


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


def _read_svhn(folder: Path) -> tuple[Split, Split] | None:
    train, test = folder / "train_32x32.mat", folder / "test_32x32.mat"
    return (_read_matlab(train), _read_matlab(test)) if train.is_file() and test.is_file() else None


def _read_matlab(path: Path) -> Split:
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
    # SciPy raises whatever a damaged file leads to.
    except Exception as error:
        raise DataFormatError(f"{path} is not a MATLAB file: {error}.") from error
    pixels, labels = content.get("X"), content.get("y")
    if pixels is None or pixels.dtype != np.uint8 or pixels.shape[:-1] != (SIDE, SIDE, 3):
        raise DataFormatError(f"{path} holds no array X of bytes with the shape 32×32×3×N.")
    if labels is None or labels.dtype.kind not in "iu" or not np.isin(labels, range(1, 11)).all():
        raise DataFormatError(f"{path} holds no array y of whole numbers from 1 to 10.")
    # The files write the digit 0 as 10.
    return checked_split(pixels.transpose(3, 2, 0, 1), labels.ravel() % 10, classes=10, origin=str(path))


# A pickle may call any function by name. Here the few names that an array of bytes needs stand for classes of our
# own, which only store their arguments; every other name is refused.
class _Type:
    """Stands for a NumPy dtype: ``dtype('u1', False, True)`` and its state."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment mean nothing for bytes, the only type that is accepted."""


class _Array:
    """Stands for a NumPy array."""

    array: NDArray[np.uint8] | None = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, data = state
        if not (isinstance(kind, _Type) and kind.code == "u1" and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Latin1:
    """Stands for ``codecs.encode``, by which Python 3 writes bytes into the older pickle protocols."""

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"text is encoded as {encoding!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it gives a function a state")


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Latin1(),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Look the name up in the table instead of importing it."""
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return _NAMES[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of plain values and arrays of bytes; its keys come out as text."""
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
    # A damaged pickle raises errors of many kinds.
    except Exception as error:
        raise DataFormatError(f"{path} is not a CIFAR batch: {error}.") from error
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value.array
        if isinstance(value, _Array)
        else value
        for key, value in content.items()
    }
