"""The Parquet files of a folder: those of each split, and their rows."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from pathlib import Path

import pandas as pd

from normless.errors import DataFormatError

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
