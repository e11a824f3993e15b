"""Parquet files of a folder: those of each split, their rows, and images in the format of the Hugging Face hub."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from normless.errors import DataFormatError
from normless_lab.data._image_data import Split, checked_split
from normless_lab.process import available_cores

_SHARD = re.compile(r"-(\d+)-of-(\d+)")


def find_splits(
    folder: Path, name: str, kinds: Sequence[str], *, foreign: Set[str] = frozenset()
) -> list[list[Path]] | None:
    """Return the files of each split by `find_shards`, the first for training; None without training files."""
    splits = [find_shards(folder, name, kind, foreign=foreign) for kind in kinds]
    if not splits[0]:
        return None
    for kind, files in zip(kinds, splits, strict=True):
        if not files:
            raise DataFormatError(f"{folder} has {splits[0][0].name} but no *{kind}*.parquet beside it.")
    return splits


def find_shards(folder: Path, name: str, kind: str, *, foreign: Set[str] = frozenset()) -> list[Path]:
    """Return the files of one split in order, all of one family ``…train…[-00000-of-00002]….parquet``."""
    families: dict[str, list[Path]] = {}
    for file in sorted(folder.glob(f"*{kind}*.parquet")):
        if not _words(file) & (foreign - {name}) and (kind == "train" or "train" not in file.name):
            families.setdefault(_SHARD.sub("", file.name), []).append(file)
    families = {family: files for family, files in families.items() if name in _words(files[0])} or families
    if len(families) > 1:
        raise DataFormatError(
            f"{folder} has several {kind} sets: {', '.join(families)}; keep one, or name it {name}."
        )
    files = next(iter(families.values()), [])
    shards = [match for file in files if (match := _SHARD.search(file.name))]
    expected = [(number, len(files)) for number in range(len(files))]
    if shards and [(int(shard[1]), int(shard[2])) for shard in shards] != expected:
        raise DataFormatError(
            f"{folder} has not all the {int(shards[0][2])} shards of a {kind} set, or more than one set: "
            f"{', '.join(file.name for file in files)}."
        )
    return files


def read_parquet_file(file: Path) -> pd.DataFrame:
    """Read a Parquet file; an unreadable one is a DataFormatError."""
    try:
        table: pd.DataFrame = pd.read_parquet(file)
    # The readers of pandas raise errors of many kinds.
    except Exception as error:
        raise DataFormatError(f"{file} is not a Parquet file: {error}.") from error
    return table


def _words(file: Path) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", file.stem.lower()))


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
