"""The data sets of this package, and the functions that read one of each kind by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from normless.data.images.cifar import cifar10, cifar100
from normless.data.images.digits import digits
from normless.data.images.generated import correlated, gaussian
from normless.data.images.image_data import ImageData
from normless.data.images.image_folder import image_folder
from normless.data.images.pets import pets
from normless.data.images.svhn import svhn
from normless.data.parallel.grammar import grammar
from normless.data.parallel.multi30k import multi30k
from normless.data.parallel.parallel_folder import parallel_text
from normless.data.parallel.parallel_text import ParallelText
from normless.data.registry import DATA as DATA
from normless.data.registry import load_by_name
from normless.data.text.labelled_tables import labelled_text, sst2
from normless.data.text.labelled_text import LabelledText
from normless.data.text.sentiment import sentiment

for _source in (
    *(digits, cifar10, cifar100, svhn, image_folder, pets, gaussian, correlated),
    *(sentiment, sst2, labelled_text),
    *(grammar, multi30k, parallel_text),
):
    DATA.register(_source.__name__)(_source)


def sources_of(kind: type[Any]) -> Mapping[str, Callable[..., Any]]:
    """The registered data sets of a kind, by the annotation of what their functions return."""
    return {name: load for name, load in DATA.items() if get_type_hints(load).get("return") is kind}


def load_data(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> ImageData:
    """Load labelled images by name, as in ``digits``, ``cifar10(train=5000, test=1000)`` or ``mine.py:photos``.

    Args:
        name: of a set of images in `DATA`, or FILE.py:NAME or MODULE:NAME; with options of its own in brackets.
        root: the folder with the data, by default `default_root`; downloads go to ``root/name``.
        download: whether a set that is not there may be downloaded.
        options: the same as in brackets.

    Raises:
        ValueError: no set has this name, it has no such option, or it is of another kind.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_by_name(name, ImageData, root=root, download=download, options=options)  # type: ignore[type-abstract]


def load_labelled_text(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> LabelledText:
    """Load labelled sentences by name, as in ``sentiment`` or ``sst2(train=2000)``; otherwise as `load_data`."""
    return load_by_name(name, LabelledText, root=root, download=download, options=options)


def load_parallel_text(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> ParallelText:
    """Load sentence pairs by name, as in ``grammar`` or ``multi30k(source='en')``; otherwise as `load_data`."""
    return load_by_name(name, ParallelText, root=root, download=download, options=options)


SOURCES = sources_of(ImageData)
TEXT_SOURCES = sources_of(LabelledText)
TRANSLATION_SOURCES = sources_of(ParallelText)
