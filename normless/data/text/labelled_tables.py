"""Labelled sentences in tables: GLUE's ``train.tsv`` and ``dev.tsv``, files of commas, and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from normless.data.errors import DataFormatError
from normless.data.text.labelled_text import LabelledSentences
from normless.data.parquet import find_shards, read_table
from normless.data.parallel.line_files import VALIDATION_STEMS, read_lines

ENDINGS = (".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")


class Columns(NamedTuple):
    """What the columns with sentences and with classes are called."""

    sentence: str
    label: str


class LabelledFiles(NamedTuple):
    """What the files were in words, the names of the classes, and the two sets read from them."""

    kind: str
    classes: tuple[str, ...]
    train: LabelledSentences
    test: LabelledSentences


# Of each row the sentence and the text of its class, None where the file has no classes.
_Rows = tuple[list[str], list[str] | None]


def read_labelled_files(
    folder: Path, columns: Columns, *, name: str, test_file: str | None = None
) -> LabelledFiles | None:
    """Read the training and the test set of a folder; None where it has no training file.

    The test set is ``test``, or where that has no classes, as in GLUE, ``dev`` (or ``val``, ``valid``,
    ``validation``). The classes are those of the training set, in the order of their numbers or of their names.

    Args:
        folder: where the files lie.
        columns: their names.
        name: of the data set; Parquet files that name it are taken before others.
        test_file: stem of the file to test on, as "dev".

    Raises:
        DataFormatError: a file lacks a column, a row has not all of them, a class is new in the test set, or no file
            to test on has classes.
    """
    training = _files(folder, "train", name)
    if not training:
        return None
    train = _read(training, columns)
    if train[1] is None:
        raise DataFormatError(_no_column(training[0], columns.label, "classes"))
    classes = _ordered(set(train[1]))
    if len(classes) < 2:
        raise DataFormatError(f"{training[0]} has one class only, {classes[0]!r}; expected two or more.")
    stem, files, test = _test(folder, columns, name, test_file)
    numbers = {label: number for number, label in enumerate(classes)}
    new = sorted(set(test[1] or ()) - set(classes))
    if new:
        raise DataFormatError(
            f"{files[0]} has the class {new[0]!r}, which {training[0].name} has not; that has {', '.join(classes)}."
        )
    sets = (
        LabelledSentences(tuple(sentences), tuple(numbers[label] for label in labels or ()))
        for sentences, labels in (train, test)
    )
    return LabelledFiles(f"{training[0].name}, tested on {stem}", classes, *sets)


def _test(folder: Path, columns: Columns, name: str, chosen: str | None) -> tuple[str, list[Path], _Rows]:
    """Stem, files and rows of the test set."""
    unlabelled = ""
    for stem in ("test", *VALIDATION_STEMS) if chosen is None else (chosen,):
        files = _files(folder, stem, name)
        if not files:
            continue
        rows = _read(files, columns)
        if rows[1] is not None and not _hidden(rows[1]):
            return stem, files, rows
        unlabelled = f" {files[0].name} has no classes in a column {columns.label!r}."
    wanted = "test or dev" if chosen is None else chosen
    raise DataFormatError(
        f"{folder} has training sentences, but no {wanted} with classes ({', '.join(ENDINGS)}).{unlabelled}"
    )


def _hidden(labels: Sequence[str]) -> bool:
    """Whether the classes are withheld: −1 everywhere, as the Hub writes the test sets of GLUE."""
    return set(labels) == {"-1"}


def _files(folder: Path, stem: str, name: str) -> list[Path]:
    for ending in ENDINGS[:-1]:
        if (folder / f"{stem}{ending}").is_file():
            return [folder / f"{stem}{ending}"]
    return find_shards(folder, name, stem) if folder.is_dir() else []


def _read(files: Sequence[Path], columns: Columns) -> _Rows:
    sentences: list[str] = []
    labels: list[str] | None = []
    for file in files:
        found, classes = _parquet(file, columns) if file.suffix == ".parquet" else _table(file, columns)
        sentences.extend(found)
        labels = None if labels is None or classes is None else [*labels, *classes]
    if not sentences:
        raise DataFormatError(f"{files[0]} holds no sentence.")
    return sentences, labels


def _parquet(file: Path, columns: Columns) -> _Rows:
    table = read_table(file)
    if columns.sentence not in table.column_names:
        raise DataFormatError(_no_column(file, columns.sentence, "sentences", table.column_names))
    sentences = [_sentence(file, value) for value in table[columns.sentence].to_pylist()]
    if columns.label not in table.column_names:
        return sentences, None
    return sentences, [str(value) for value in table[columns.label].to_pylist()]


def _sentence(file: Path, value: object) -> str:
    if not isinstance(value, str):
        raise DataFormatError(f"{file} has {value!r} for a sentence; expected text in every row.")
    return value.strip()


def _table(file: Path, columns: Columns) -> _Rows:
    """The rows of a file of tabs, which has no quotes, or of commas, where quotes hold a text together."""
    lines = read_lines(file)
    if ".tsv" in file.suffixes:
        table = [line.rstrip("\r").split("\t") for line in lines]
    else:
        table = list(csv.reader(f"{line}\n" for line in lines))
    header, *rows = [[cell.strip() for cell in row] for row in table] or [[]]
    if columns.sentence not in header:
        raise DataFormatError(_no_column(file, columns.sentence, "sentences", header))
    rows = [row for row in rows if row and row != [""]]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataFormatError(
                f"Row {number} of {file} has {len(row)} columns and its header {len(header)}: {', '.join(header)}."
            )
    place = header.index(columns.sentence)
    sentences = [row[place] for row in rows]
    if columns.label not in header:
        return sentences, None
    return sentences, [row[header.index(columns.label)] for row in rows]


def _no_column(file: Path, column: str, what: str, found: Sequence[str] = ()) -> str:
    names = f" among {', '.join(found)}" if found else ""
    return f"{file} has no column {column!r} with {what}{names}; name it by sentence=… or label=…."


def _ordered(labels: set[str]) -> tuple[str, ...]:
    """Classes by their numbers where all are numbers, else by name."""
    numbers = all(label.lstrip("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=int if numbers else None))
