"""Text in the files of a folder, and labelled sentences in tables: GLUE's files, comma-separated files, Parquet."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from normless.errors import DataFormatError, DataNotFoundError
from normless_lab.data import BY_ROOT, find_shards, first_of, read_parquet_file
from normless_papers.text.text_sets import LabelledSentences, LabelledText

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


ENDINGS = (".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")


def sst2(*, root: Path, test_file: str | None = None) -> LabelledText:
    """The Stanford Sentiment Treebank with two classes (Socher et al. 2013), from GLUE's files or the Hub's.

    They lie in ``root/SST-2``, ``root/sst2`` or ``root``, or in ``data`` within: ``train.tsv`` and ``dev.tsv``, or
    Parquet. GLUE does not publish the labels of its test sentences, so the accuracy is that of dev.

    Args:
        test_file: stem of the file to test on; "dev" in what GLUE distributes.
    """
    folders = [root / name / within for name in ("SST-2", "sst2", ".") for within in (".", "data")]
    text = first_of(lambda folder: _read_text(folder, "sentence", "label", "sst2", test_file), folders)
    if text is None:
        raise DataNotFoundError(
            f"The data set sst2 is in none of {root / 'SST-2'}, {root / 'sst2'} and {root}: expected train.tsv and "
            "dev.tsv as GLUE distributes them, or *train*.parquet. Put them there, or name their folder "
            f"{BY_ROOT}."
        )
    return text


def labelled_text(
    *, root: Path, sentence: str = "sentence", label: str = "label", test_file: str | None = None
) -> LabelledText:
    """Labelled sentences of your own: a folder with ``train`` and ``test`` or ``dev``.

    The files are .tsv or .csv (plain or .gz) or .parquet, with a header.

    Args:
        sentence, label: names of the columns with sentences and with classes, which are numbers or names.
        test_file: stem of the file to test on.
    """
    text = _read_text(root, sentence, label, root.name, test_file)
    if text is None:
        raise DataNotFoundError(
            f"{root} has no train.tsv, train.csv (plain or .gz) or *train*.parquet. Name the right folder {BY_ROOT}."
        )
    return replace(text, name="labelled_text", origin=f"{root.resolve().name}/{text.origin}")


def _read_text(folder: Path, sentence: str, label: str, name: str, test_file: str | None) -> LabelledText | None:
    """Read the training and the test set of a folder; return None without a training file.

    The test set is the first of ``test`` and `VALIDATION_STEMS` with classes; ``test`` of GLUE is without classes.
    The classes are those of the training set, in the order of their numbers or of their names.
    """
    columns, training = {"sentence": sentence, "label": label}, _files(folder, "train", name)
    if not training:
        return None
    train = read_columns(training, columns, optional=("label",))
    if "label" not in train:
        raise DataFormatError(f"{training[0]} has no column {label!r} with classes; name it by label=….")
    labels = set(train["label"])
    numbers = all(value.lstrip("-").isdecimal() for value in labels)
    classes = tuple(sorted(labels, key=int if numbers else None))
    if len(classes) < 2:
        raise DataFormatError(f"{training[0]} has one class only, {classes[0]!r}; expected two or more.")
    unlabelled = ""
    for stem in ("test", *VALIDATION_STEMS) if test_file is None else (test_file,):
        files = _files(folder, stem, name)
        test = read_columns(files, columns, optional=("label",)) if files else pd.DataFrame()
        # The Hub writes −1 for the classes of GLUE's test sets, which are not published.
        if "label" in test and set(test["label"]) != {"-1"}:
            break
        unlabelled += f" {files[0].name} has no classes in a column {label!r}." if files else ""
    else:
        raise DataFormatError(
            f"{folder} has training sentences, but no {test_file or 'test or dev'} with classes "
            f"({', '.join(ENDINGS)}).{unlabelled}"
        )
    new = sorted(set(test["label"]) - labels)
    if new:
        raise DataFormatError(
            f"{files[0]} has the class {new[0]!r}, which {training[0].name} has not; that has {', '.join(classes)}."
        )
    parts = (
        LabelledSentences(tuple(table["sentence"]), tuple(map(classes.index, table["label"])))
        for table in (train, test)
    )
    return LabelledText(name, f"{training[0].name}, tested on {stem}", classes, *parts)


def _files(folder: Path, stem: str, name: str) -> list[Path]:
    texts = [path for ending in ENDINGS[:-1] if (path := folder / f"{stem}{ending}").is_file()]
    return texts[:1] or (find_shards(folder, name, stem) if folder.is_dir() else [])
