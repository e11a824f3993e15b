"""Parallel text of the user's own: a folder of text files, of IWSLT's talks or of Parquet files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from normless.data.parallel.line_files import read_iwslt, read_text_files
from normless.data.tables import find_shards, read_table
from normless.data.text_sets import Pairs, PairSets, ParallelText, checked_pairs
from normless.errors import DataFormatError, DataNotFoundError

PAIR_COLUMN = "translation"


def parallel_text(*, root: Path, source: str = "de", target: str = "en", test: str | None = None) -> ParallelText:
    """Sentence pairs of your own: a folder of text files, of IWSLT's talks, or of Parquet files.

    Args:
        root: the folder.
        source: of the language to translate, the files' ending or the column's name.
        target: of the language to translate to.
        test: stem of the test files, where they are text files; the only one there is if None.

    Raises:
        DataNotFoundError: the folder has none of the layouts.
        DataFormatError: a set is incomplete, or a file does not hold what it should.
    """
    sets = find_pair_sets(root, source, target, name=root.name, test=test)
    if sets is None:
        raise DataNotFoundError(
            f"{root} has neither train.{source} with train.{target} (plain or .gz), nor the talks of IWSLT "
            f"(train.tags.{source}-{target}.{source}), nor *train*.parquet. Name the right folder "
            "with root, or the languages by source=… and target=…."
        )
    origin = f"{sets.kind} of {root.resolve().name}"
    return ParallelText("parallel_text", (source, target), origin, sets.train, sets.validation, sets.test)


def find_pair_sets(folder: Path, source: str, target: str, *, name: str, test: str | None) -> PairSets | None:
    """The three sets of a folder, or in its ``data/`` or ``de-en/`` as the Hub keeps Parquet; None if not there."""
    sets = read_text_files(folder, source, target, test=test) or read_iwslt(folder, source, target)
    places = (folder / below for below in (".", "data", f"{source}-{target}", f"{target}-{source}"))
    parquet = (_read_parquet(place, name, source, target) for place in places)
    return sets or next((one for one in parquet if one is not None), None)


def _read_parquet(folder: Path, name: str, source: str, target: str) -> PairSets | None:
    """Read ``*train*.parquet``, ``*val*.parquet`` and ``*test*.parquet``; None where there is no training file.

    A sentence pair is a row of the column ``translation``, a struct {"de": …, "en": …}, or of two columns with the
    languages' names.
    """
    train, validation, test = (find_shards(folder, name, part) for part in ("train", "val", "test"))
    if not train:
        return None
    for part, files in (("val", validation), ("test", test)):
        if not files:
            raise DataFormatError(f"{folder} has {train[0].name} but no *{part}*.parquet beside it.")
    return PairSets("Parquet files", *(_pairs(files, source, target) for files in (train, validation, test)))


def _pairs(files: list[Path], source: str, target: str) -> Pairs:
    sides: dict[str, list[str]] = {source: [], target: []}
    for file in files:
        table = read_table(file)
        if PAIR_COLUMN in table and isinstance(table[PAIR_COLUMN].iloc[0], dict):
            table = pd.DataFrame(table[PAIR_COLUMN].tolist())
        for language, sentences in sides.items():
            if language not in table:
                raise DataFormatError(
                    f"{file} has no sentences in {language!r}: expected a column {PAIR_COLUMN} of "
                    f"{{{source}, {target}}} or the columns {source} and {target}, found "
                    f"{', '.join(map(str, table.columns))}."
                )
            wrong = [value for value in table[language] if not isinstance(value, str)]
            if wrong:
                raise DataFormatError(
                    f"The sentences in {language!r} of {file} have {wrong[0]!r}; expected text, none missing."
                )
            sentences.extend(table[language])
    return checked_pairs(", ".join(map(str, files)), sides[source], sides[target])
