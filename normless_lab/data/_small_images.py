"""Sets of small images: digits, noise with random labels, CIFAR and Street View House Numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from normless.errors import DataFormatError
from normless_lab.data._augmentation import AUGMENTATIONS, Augmentation
from normless_lab.data._downloads import fetch_files, find_or_fetch, first_of
from normless_lab.data._image_data import ImageData, Split, checked_split, in_memory
from normless_lab.data._parquet import read_parquet

DIGITS_SIDE = 8


def digits(*, side: int = DIGITS_SIDE, channels: int = 1) -> ImageData:
    """Scans of handwritten digits: 10 classes, 1×8×8, 1,437 for training and 360 for testing.

    The data of ``sklearn.datasets.load_digits`` (Alpaydin & Kaynak 1998) in one fixed stratified split; the stored
    values 0 … 16 become the bytes round(value · 255/16). A ``side`` above 8 enlarges the images bilinearly, for
    networks that divide the resolution by more than 8; ``channels=3`` repeats the channel, for networks on colours.

    Raises:
        ValueError: the side is below 8, or there are no channels.
    """
    if channels < 1:
        raise ValueError(f"Expected 1 or more channels of digits, got channels={channels}.")
    if side < DIGITS_SIDE:
        raise ValueError(
            f"The images of digits have a side of {DIGITS_SIDE} pixels and are only enlarged, got side={side}."
        )
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        pixels, labels, testing = stored["images"], stored["labels"], torch.from_numpy(stored["test"])
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    if side > DIGITS_SIDE:
        images = F.interpolate(images.float(), size=(side, side), mode="bilinear").round().to(torch.uint8)
    images = images.expand(-1, channels, -1, -1)
    whole = Split(images, torch.from_numpy(labels.astype(np.int64)))
    train, test = (whole.take(chosen.nonzero().flatten()) for chosen in (~testing, testing))
    return in_memory("digits", "scikit-learn load_digits, fixed stratified split", train, test, classes=10)


def gaussian(
    *, image_shape: Sequence[int] = (3, 32, 32), classes: int = 10, train: int = 1024, test: int = 256, seed: int = 0
) -> ImageData:
    """Images (C, H, W) or vectors (features,) of independent N(0, 1) with random labels, as theory assumes.

    Inputs are passed on as drawn (mean 0, standard deviation 1 by construction).

    Raises:
        ValueError: the shape has not one or three positive lengths, or a count is below 1.
    """
    _check_shape("gaussian", image_shape, {3: "(C, H, W)", 1: "(features,)"})
    return _generated(
        "gaussian",
        "independent N(0, 1)",
        lambda count, generator: torch.randn(count, *image_shape, generator=generator, dtype=torch.float32),
        lambda pixels: (torch.zeros(pixels.shape[1]), torch.ones(pixels.shape[1])),
        counts={"classes": classes, "train": train, "test": test},
        seed=seed,
    )


def correlated(
    *, image_shape: Sequence[int] = (3, 32, 32), classes: int = 10, train: int = 1024, test: int = 256, seed: int = 0
) -> ImageData:
    """Images (C, H, W) with the long-range correlations of photographs: `correlated_noise` with random labels.

    They replace photographs where a measurement needs correlated neighbouring pixels and images that differ in
    brightness, without a download.

    Raises:
        ValueError: the shape has not three positive lengths, or a count is below 1.
    """
    _check_shape("correlated", image_shape, {3: "(C, H, W)"})
    channels, height, width = image_shape
    return _generated(
        "correlated",
        "noise on several scales",
        lambda count, generator: correlated_noise(count, (channels, height, width), generator),
        lambda pixels: (pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0)),
        counts={"classes": classes, "train": train, "test": test},
        seed=seed,
    )


def correlated_noise(count: int, image_shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """The sum of N(0, 1) noise on grids of 2, 4, 8, … points a side, enlarged bilinearly, and of a shift per image.

    Returns:
        float32 [count, C, H, W], not normalized.
    """
    channels, height, width = image_shape
    side = max(height, width)
    powers = [2**power for power in range(1, side.bit_length()) if 2**power < side]
    images = torch.zeros(count, channels, height, width)
    for scale in (*powers, side):
        grid = (min(scale, height), min(scale, width))
        noise = torch.randn(count, channels, *grid, generator=generator)
        images += F.interpolate(noise, size=(height, width), mode="bilinear", align_corners=False)
    return images + torch.randn(count, 1, 1, 1, generator=generator)


def _generated(
    name: str,
    source: str,
    draw: Callable[[int, torch.Generator], Tensor],
    statistics: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    counts: dict[str, int],
    seed: int,
) -> ImageData:
    """Both sets from one generator, first the pixels and then the labels of each; `statistics` are of training."""
    for what, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{what} of {name} is a whole number from 1, got {count!r}.")
    generator = torch.Generator().manual_seed(seed)
    train, test = (
        Split(draw(counts[part], generator), torch.randint(counts["classes"], (counts[part],), generator=generator))
        for part in ("train", "test")
    )
    origin = f"{source}, random labels, seed {seed}"
    return in_memory(name, origin, train, test, classes=counts["classes"], statistics=statistics, full=1.0)


def _check_shape(name: str, image_shape: Sequence[int], lengths: dict[int, str]) -> None:
    """Refuse another shape of an example; `lengths` names the possible numbers of axes."""
    whole = isinstance(image_shape, Sequence) and all(isinstance(n, int) and n >= 1 for n in image_shape)
    if not whole or len(image_shape) not in lengths:
        raise ValueError(f"image_shape of {name} is {' or '.join(lengths.values())}, got {image_shape!r}.")


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


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Look the name up in the table instead of importing it."""
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return _NAMES[module, name]


def read_batch(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of plain values and arrays of bytes; its keys come out as text."""
    try:
        with path.open("rb") as file:
            content = _RestrictedUnpickler(file, encoding="bytes").load()
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
