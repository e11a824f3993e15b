"""Parquet files in the format of the Hugging Face hub: encoded images and labels, possibly in shards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from normless.errors import DataFormatError
from normless_lab.data.images.tensor_images import Split, checked_split
from normless_lab.data.tables import find_splits, read_parquet_file
from normless_lab.process import available_cores

IMAGE_COLUMNS = ("image", "img", "images")

_SET_NAMES = frozenset({"cifar10", "cifar100", "svhn"})

_Bytes = NDArray[np.uint8]


def read_parquet(
    folder: Path, name: str, *, classes: int, image_shape: tuple[int, ...], label_columns: Sequence[str]
) -> tuple[tuple[Split, Split], str] | None:
    """Read ``*train*.parquet`` and ``*test*.parquet`` of a folder; return None without a training file.

    Files that name another set are ignored. The images, a column of bytes or of {bytes, path}, are decoded once, in
    threads.

    Returns:
        The two sets, and a description of their storage: PNG is the original, JPEG is not.
    """
    shards = find_splits(folder, name, ("train", "test"), foreign=_SET_NAMES)
    if shards is None:
        return None
    formats: set[str] = set()
    splits = []
    for files in shards:
        images, labels, kinds = zip(*(_read_file(file, image_shape, label_columns) for file in files), strict=True)
        formats.update(*kinds)
        origin = ", ".join(map(str, files))
        splits.append(checked_split(np.concatenate(images), np.concatenate(labels), classes=classes, origin=origin))
    train, test = splits
    return (train, test), f"Parquet files of {' and '.join(sorted(formats))} images"


def _read_file(
    file: Path, image_shape: tuple[int, ...], label_columns: Sequence[str]
) -> tuple[_Bytes, NDArray[Any], set[str]]:
    """Return images [N, 3, H, W], labels [N], and the formats in which the images were stored."""
    table = read_parquet_file(file)
    encoded, labels = _column(file, table, IMAGE_COLUMNS, "images"), _column(file, table, label_columns, "labels")
    if not pd.api.types.is_integer_dtype(labels):
        raise DataFormatError(f"Column {labels.name} of {file} is {labels.dtype}; expected integers, none missing.")
    _, height, width = image_shape
    values = encoded.tolist()
    images = np.empty((len(values), height, width, 3), np.uint8)

    def decode(row: int) -> str:
        data = values[row].get("bytes") if isinstance(values[row], dict) else values[row]
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.size != (width, height):
                    raise ValueError(f"it is {image.width}×{image.height} pixels, expected {width}×{height}")
                images[row] = np.asarray(image.convert("RGB"))
                return str(image.format)
        # Pillow raises errors of many kinds for damaged bytes.
        except Exception as error:
            raise DataFormatError(
                f"Cannot decode the image in row {row} of column {encoded.name} of {file}, which should be bytes or "
                f"{{bytes, path}}: {error}."
            ) from error

    with ThreadPoolExecutor(available_cores()) as pool:
        formats = set(pool.map(decode, range(len(values))))
    return images.transpose(0, 3, 1, 2), labels.to_numpy(), formats


def _column(file: Path, table: pd.DataFrame, wanted: Sequence[str], meaning: str) -> pd.Series:
    name = next((name for name in wanted if name in table), None)
    if name is None:
        raise DataFormatError(
            f"{file} has no column of {meaning}: expected {' or '.join(wanted)}, found {', '.join(map(str, table))}."
        )
    return table[name]
