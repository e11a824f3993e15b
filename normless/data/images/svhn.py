"""Street View House Numbers, cropped digits (Netzer et al. 2011): 73,257 training and 26,032 test images."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from normless.data.downloads import fetch_images
from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.small_images import IMAGE_SHAPE, Recipe, load_small_images
from normless.data.images.tensor_images import Split, Splits, checked_split
from normless.errors import DataFormatError


def svhn(*, root: Path, download: bool, side: int = 32) -> ImageData:
    """Street View House Numbers (Netzer et al. 2011), cropped digits, without the set 'extra'.

    From ``train_32x32.mat`` and ``test_32x32.mat``, Parquet, or by download.

    ``side`` 16 or 8 averages the pixels of squares, for smaller images.

    Raises:
        ValueError: the side does not divide 32.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_small_images(_SVHN, root, download=download, side=side)


def _read_official(folder: Path) -> Splits | None:
    train, test = folder / "train_32x32.mat", folder / "test_32x32.mat"
    if not (train.is_file() and test.is_file()):
        return None
    return Splits(_read_split(train), _read_split(test))


def _read_split(path: Path) -> Split:
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


_SVHN = Recipe(
    name="svhn",
    classes=10,
    layout="train_32x32.mat and test_32x32.mat",
    read_official=_read_official,
    fetch=partial(fetch_images, files=lambda sets: [sets.SVHN.split_list[part] for part in ("train", "test")]),
    parquet_folders=("data", "cropped_digits"),
    label_columns=("label", "labels"),
    default_augmentation=Augmentation(),
)
