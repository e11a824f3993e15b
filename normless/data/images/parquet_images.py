"""Parquet files as the Hub of data sets writes them: encoded images and labels, perhaps in shards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from normless.data.images.tensor_images import Split, Splits, checked_split
from normless.data.tables import find_shards, read_table
from normless.errors import DataFormatError
from normless.machine import available_cores

IMAGE_COLUMNS = ("image", "img", "images")

_SET_NAMES = frozenset({"cifar10", "cifar100", "svhn"})

_Bytes = NDArray[np.uint8]


class _Part(NamedTuple):
    """One file: images [N, 3, H, W], labels [N], and the formats in which the images were stored."""

    images: _Bytes
    labels: NDArray[Any]
    formats: set[str]


def read_parquet(
    folder: Path, name: str, *, classes: int, image_shape: tuple[int, ...], label_columns: Sequence[str]
) -> tuple[Splits, str] | None:
    """Read ``*train*.parquet`` and ``*test*.parquet`` of a folder; None where it has no training file.

    Several shards (``train-00000-of-00002.parquet``) are read in order. Files that name another set are
    ignored. The images, a column of bytes or of {bytes, path}, are decoded once, in threads.

    Returns:
        The two sets, and in words how they were stored: JPEG is not the original, PNG is.
    """
    train, test = (find_shards(folder, name, kind, foreign=_SET_NAMES) for kind in ("train", "test"))
    if not train:
        return None
    if not test:
        raise DataFormatError(f"{folder} has {train[0].name} but no *test*.parquet beside it.")

    formats: set[str] = set()

    def split(files: list[Path]) -> Split:
        parts = [_read_file(file, image_shape, label_columns) for file in files]
        formats.update(*(part.formats for part in parts))
        return checked_split(
            np.concatenate([part.images for part in parts]),
            np.concatenate([part.labels for part in parts]),
            classes=classes,
            origin=", ".join(map(str, files)),
        )

    return Splits(split(train), split(test)), f"Parquet files of {' and '.join(sorted(formats))} images"


def _read_file(file: Path, image_shape: tuple[int, ...], label_columns: Sequence[str]) -> _Part:
    table = read_table(file)
    encoded = table[_column(file, list(table.columns), IMAGE_COLUMNS, "images")]
    labels = table[_column(file, list(table.columns), label_columns, "labels")]
    contents = [value.get("bytes", value) if isinstance(value, dict) else value for value in encoded]
    wrong = next((value for value in contents if not isinstance(value, bytes | None)), None)
    if wrong is not None:
        raise DataFormatError(
            f"Column {encoded.name} of {file} has {wrong!r:.40}; expected bytes or {{bytes, path}}."
        )
    if not pd.api.types.is_integer_dtype(labels):
        raise DataFormatError(f"Column {labels.name} of {file} is {labels.dtype}; expected integers, none missing.")
    images, formats = _decoded(contents, image_shape, f"column {encoded.name} of {file}")
    return _Part(images, labels.to_numpy(), formats)


def _column(file: Path, present: Sequence[str], wanted: Sequence[str], meaning: str) -> str:
    for name in wanted:
        if name in present:
            return name
    raise DataFormatError(
        f"{file} has no column of {meaning}: expected {' or '.join(wanted)}, found {', '.join(present)}."
    )


def _decoded(encoded: list[bytes | None], image_shape: tuple[int, ...], origin: str) -> tuple[_Bytes, set[str]]:
    """Images [N, 3, H, W] and the formats they were in."""
    _, height, width = image_shape
    images = np.empty((len(encoded), height, width, 3), np.uint8)

    def decode(row: int) -> str:
        data = encoded[row]
        try:
            if data is None:
                raise ValueError("its bytes are missing; a path alone is not enough")
            with Image.open(io.BytesIO(data)) as image:
                if image.size != (width, height):
                    raise ValueError(f"it is {image.width}×{image.height} pixels, expected {width}×{height}")
                images[row] = np.asarray(image.convert("RGB"))
                return str(image.format)
        # Pillow raises errors of many kinds for damaged bytes.
        except Exception as error:
            raise DataFormatError(f"Cannot decode the image in row {row} of {origin}: {error}.") from error

    def decode_some(rows: range) -> set[str]:
        return {decode(row) for row in rows}

    rows = range(len(encoded))
    with ThreadPoolExecutor(available_cores()) as pool:
        formats = set().union(*pool.map(decode_some, (rows[first : first + 512] for first in rows[::512])))
    return images.transpose(0, 3, 1, 2), formats
