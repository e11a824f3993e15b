"""Which Parquet files of a folder are a split, and a table read from one."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from normless.data.errors import DataFormatError

if TYPE_CHECKING:
    import pyarrow as pa

_SHARD = re.compile(r"-(\d+)-of-(\d+)")


def find_shards(folder: Path, name: str, kind: str, *, foreign: Set[str] = frozenset()) -> list[Path]:
    """The files of one split in order, the whole of one family ``…train…[-00000-of-00002]….parquet``.

    Args:
        folder: where the files lie.
        name: of the data set; files that name it are taken before others.
        kind: "train", "val" (or validation) or "test".
        foreign: names of other data sets, whose files are passed over.

    Raises:
        DataFormatError: several families could be the split, or shards are missing.
    """
    families: dict[str, list[Path]] = {}
    for file in sorted(folder.glob(f"*{kind}*.parquet")):
        if not _words(file) & (foreign - {name}) and (kind == "train" or "train" not in file.name):
            families.setdefault(_SHARD.sub("", file.name), []).append(file)
    named = {family: files for family, files in families.items() if name in _words(files[0])}
    families = named or families
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


def read_table(file: Path) -> pa.Table:
    """The table in a Parquet file.

    Raises:
        DataFormatError: the file holds none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise DataFormatError(f"{file} is not a Parquet file: {error}.") from error


def _words(file: Path) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", file.stem.lower()))
