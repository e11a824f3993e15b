"""The table of data sets, and `load_data`, which reads one by its name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from normless.data.images.cifar import cifar10, cifar100
from normless.data.images.correlated import correlated
from normless.data.images.digits import digits
from normless.data.images.gaussian import gaussian
from normless.data.images.image_folder import image_folder
from normless.data.images.image_data import ImageData
from normless.data.images.pets import pets
from normless.data.registry import load_by_name
from normless.data.images.svhn import svhn


def _of_any_size(source: Callable[..., ImageData]) -> Callable[..., ImageData]:
    """The source with the options train and test: how many examples are kept, all if None; see `ImageData.subset`."""

    @wraps(source)
    def load(*, train: int | None = None, test: int | None = None, **options: Any) -> ImageData:
        data = source(**options)
        return data if train is None and test is None else data.subset(train=train, test=test)

    signature = inspect.signature(source)
    sizes = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=int | None)
        for name in ("train", "test")
    ]
    load.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *sizes])  # type: ignore[attr-defined]
    return load


SOURCES: dict[str, Callable[..., ImageData]] = {
    "digits": _of_any_size(digits),
    "cifar10": _of_any_size(cifar10),
    "cifar100": _of_any_size(cifar100),
    "svhn": _of_any_size(svhn),
    "image_folder": _of_any_size(image_folder),
    "pets": _of_any_size(pets),
    "gaussian": gaussian,
    "correlated": correlated,
}


def load_data(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> ImageData:
    """Load a data set by name, as in ``digits``, ``cifar10(train=5000, test=1000)`` or ``gaussian(classes=4)``.

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
