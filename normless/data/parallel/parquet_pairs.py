"""Parallel text as the Hub of data sets writes it: Parquet files, perhaps in shards."""

from __future__ import annotations

from pathlib import Path

from normless.data.errors import DataFormatError
from normless.data.parallel.parallel_text import Pairs, PairSets, checked_pairs
from normless.data.parquet import find_shards, read_table

PAIR_COLUMN = "translation"


def read_parallel_parquet(folder: Path, name: str, source: str, target: str) -> PairSets | None:
    """Read ``*train*.parquet``, ``*val*.parquet`` and ``*test*.parquet``; None where there is no training file.

    A sentence pair is a row of the column ``translation``, a struct {"de": …, "en": …}, or of two columns with the
    languages' names.

    Args:
        folder: where the files lie.
        name: of the data set; files that name it are taken before others.
        source: of the language to translate, as "de".
        target: of the language to translate to, as "en".

    Raises:
        DataFormatError: the files are ambiguous, incomplete, or do not hold such pairs.
    """
    train, validation, test = (find_shards(folder, name, kind) for kind in ("train", "val", "test"))
    if not train:
        return None
    for kind, files in (("val", validation), ("test", test)):
        if not files:
            raise DataFormatError(f"{folder} has {train[0].name} but no *{kind}*.parquet beside it.")
    return PairSets("Parquet files", *(_read(files, source, target) for files in (train, validation, test)))


def _read(files: list[Path], source: str, target: str) -> Pairs:
    sides: tuple[list[str], list[str]] = ([], [])
    for file in files:
        for side, sentences in zip(sides, _read_file(file, source, target), strict=True):
            side.extend(sentences)
    return checked_pairs(", ".join(map(str, files)), *sides)


def _read_file(file: Path, source: str, target: str) -> list[list[str]]:
    import pyarrow as pa

    table = read_table(file)
    if PAIR_COLUMN in table.column_names and pa.types.is_struct(table[PAIR_COLUMN].type):
        table = pa.Table.from_struct_array(table[PAIR_COLUMN].combine_chunks())
    sides = []
    for language in (source, target):
        if language not in table.column_names:
            raise DataFormatError(
                f"{file} has no sentences in {language!r}: expected a column {PAIR_COLUMN} of {{{source}, {target}}} "
                f"or the columns {source} and {target}, found {', '.join(table.column_names)}."
            )
        column = table[language]
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if not texts or column.null_count:
            raise DataFormatError(
                f"The sentences in {language!r} of {file} are {column.type}; expected text, none missing."
            )
        sides.append(column.to_pylist())
    return sides
