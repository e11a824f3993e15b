"""The table of data sets, and `load_data`, which reads one by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from normless.data.by_name import load_by_name
from normless.data.cifar import cifar10, cifar100
from normless.data.digits import digits
from normless.data.gaussian import gaussian
from normless.data.image_folder import image_folder
from normless.data.images import ImageData
from normless.data.svhn import svhn

SOURCES: dict[str, Callable[..., ImageData]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "image_folder": image_folder,
    "gaussian": gaussian,
}


def load_data(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> ImageData:
    """Load a data set by name, as in ``digits`` or ``gaussian(image_shape=(1, 8, 8), classes=4)``.

    Args:
        name: one of `SOURCES`, with options of its own in brackets if it has any.
        root: the folder with the data, by default `default_root`; downloads go to ``root/name``.
        download: whether a set that is not there may be downloaded.
        options: the same as in brackets.

    Raises:
        ValueError: no set has this name, or it has no such option.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_by_name(SOURCES, name, root=root, download=download, options=options)
