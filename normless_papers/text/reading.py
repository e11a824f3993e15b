"""Text in the files of a folder: the lines of a file, and the columns of the tables of a split."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normless.errors import DataFormatError
from normless_lab.data import read_parquet_file

# Stems of files with a validation set.
VALIDATION_STEMS = ("val", "valid", "validation", "dev")


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


def read_columns(
    files: Sequence[Path], columns: Mapping[str, str], *, optional: Collection[str] = ()
) -> pd.DataFrame:
    """Read columns of text, each under its key, from tables with a header, one below the other.

    The files are Parquet, where a column of structs stands for its fields; or text, separated by tabs without quotes
    or by commas with quotes, perhaps compressed. A column that is optional may be missing, and may hold numbers.
    """
    tables = []
    for file in files:
        table = _read_table(file)
        chosen = {key: table[column] for key, column in columns.items() if column in table}
        missing = [column for key, column in columns.items() if key not in chosen and key not in optional]
        if missing:
            names = ", ".join(map(str, table.columns))
            raise DataFormatError(
                f"{file} has no column {missing[0]!r} among {names}; name it in the data set's brackets."
            )
        for key, values in chosen.items():
            wrong = [value for value in values if not (value != "" if key in optional else isinstance(value, str))]
            if wrong:
                raise DataFormatError(f"The column {columns[key]!r} of {file} has {wrong[0]!r}; expected text.")
        tables.append(pd.DataFrame({key: values.astype(str).str.strip() for key, values in chosen.items()}))
    whole = pd.concat(tables, join="inner", ignore_index=True)
    if whole.empty:
        raise DataFormatError(f"{files[0]} holds no sentence.")
    return whole


def _read_table(file: Path) -> pd.DataFrame:
    if file.suffix == ".parquet":
        table = read_parquet_file(file)
        structs = [name for name in table if len(table) and isinstance(table[name].iloc[0], dict)]
        return pd.DataFrame(table[structs[0]].tolist()) if structs else table
    form: dict[str, Any] = {"sep": "\t", "quoting": csv.QUOTE_NONE} if ".tsv" in file.suffixes else {}
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig", lineterminator="\n", **form)
    # The readers of pandas raise errors of many kinds.
    except Exception as error:
        raise DataFormatError(f"{file} is not a table of text in UTF-8 with a header: {error}.") from error
    if not isinstance(table.index, pd.RangeIndex):
        raise DataFormatError(f"{file} has rows with more columns than its header.")
    stripped: pd.DataFrame = table.rename(columns=str.strip)
    return stripped
