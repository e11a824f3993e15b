"""Tables of a folder: the Parquet files of a split, and the rows of a file."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Sequence, Set
from pathlib import Path

import pandas as pd

from normless.errors import DataFormatError

# Stems of files with a validation set.
VALIDATION_STEMS = ("val", "valid", "validation", "dev")
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


def read_table(file: Path) -> pd.DataFrame:
    """Read a table: Parquet; or text with a header, separated by tabs without quotes or by commas with quotes.

    Cells of a text file are strings without surrounding white space; a file may be compressed (``.gz``).
    """
    if file.suffix == ".parquet":
        try:
            parquet: pd.DataFrame = pd.read_parquet(file)
        # The readers of pandas raise errors of many kinds.
        except Exception as error:
            raise DataFormatError(f"{file} is not a Parquet file: {error}.") from error
        return parquet
    lines = (f"{line}\n" for line in read_lines(file))
    tabs = ".tsv" in file.suffixes
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines)
    try:
        header, *cells = [[cell.strip() for cell in row] for row in rows if "".join(row).strip()] or [[]]
    except csv.Error as error:
        raise DataFormatError(f"{file} is not a table: {error}.") from error
    for number, row in enumerate(cells, 1):
        if len(row) != len(header):
            raise DataFormatError(
                f"Row {number} of {file} has {len(row)} columns and its header {len(header)}: {', '.join(header)}."
            )
    return pd.DataFrame(cells, columns=pd.Index(header), dtype=object)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, which is decompressed if its name ends in ``.gz``.

    Only a line feed ends a line: a Unicode line separator within a sentence must not shift all that follow it
    against their translations.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = "text in UTF-8, compressed by gzip" if path.suffix == ".gz" else "text in UTF-8"
        raise DataFormatError(f"{path} is not {kind}: {error}.") from error
    return lines[:-1] if lines[-1] == "" else lines


def _words(file: Path) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", file.stem.lower()))
