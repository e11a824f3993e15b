"""Labelled sentences in tables: GLUE's ``train.tsv`` and ``dev.tsv``, comma-separated files, and Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from normless.errors import DataFormatError, DataNotFoundError
from normless_lab.data.downloads import BY_ROOT, first_of
from normless_lab.data.tables import VALIDATION_STEMS, find_shards, read_table
from normless_papers.text.text_sets import LabelledSentences, LabelledText

ENDINGS = (".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")

# Names of the columns with sentences and with classes.
Columns = tuple[str, str]


def sst2(*, root: Path, test_file: str | None = None) -> LabelledText:
    """The Stanford Sentiment Treebank with two classes (Socher et al. 2013), from GLUE's files or the Hub's.

    They lie in ``root/SST-2``, ``root/sst2`` or ``root``, or in ``data`` within: ``train.tsv`` and ``dev.tsv``, or
    Parquet. GLUE does not publish the labels of its test sentences, so the accuracy is that of dev.

    Args:
        test_file: stem of the file to test on; "dev" in what GLUE distributes.
    """
    folders = [root / name / within for name in ("SST-2", "sst2", ".") for within in (".", "data")]
    text = first_of(lambda folder: _read_text(folder, ("sentence", "label"), "sst2", test_file), folders)
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
    text = _read_text(root, (sentence, label), root.name, test_file)
    if text is None:
        raise DataNotFoundError(
            f"{root} has no train.tsv, train.csv (plain or .gz) or *train*.parquet. Name the right folder {BY_ROOT}."
        )
    return replace(text, name="labelled_text", origin=f"{root.resolve().name}/{text.origin}")


def _read_text(folder: Path, columns: Columns, name: str, test_file: str | None) -> LabelledText | None:
    """Read the training and the test set of a folder; return None without a training file.

    The test set is the first of ``test`` and `VALIDATION_STEMS` with classes; ``test`` of GLUE is without classes.
    The classes are those of the training set, in the order of their numbers or of their names.
    """
    training = _files(folder, "train", name)
    if not training:
        return None
    train = _read(training, columns)
    if "label" not in train:
        raise DataFormatError(_no_column(training[0], columns[1], "classes"))
    labels = set(train["label"])
    numbers = all(label.lstrip("-").isdecimal() for label in labels)
    classes = tuple(sorted(labels, key=int if numbers else None))
    if len(classes) < 2:
        raise DataFormatError(f"{training[0]} has one class only, {classes[0]!r}; expected two or more.")
    unlabelled = ""
    for stem in ("test", *VALIDATION_STEMS) if test_file is None else (test_file,):
        files = _files(folder, stem, name)
        test = _read(files, columns) if files else pd.DataFrame()
        # The Hub writes −1 for the classes of GLUE's test sets, which are not published.
        if "label" in test and set(test["label"]) != {"-1"}:
            break
        unlabelled += f" {files[0].name} has no classes in a column {columns[1]!r}." if files else ""
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


def _read(files: Sequence[Path], columns: Columns) -> pd.DataFrame:
    """Columns `sentence`, and `label` where the files have classes, both text."""
    sentence, label = columns
    tables = []
    for file in files:
        table = read_table(file)
        if sentence not in table:
            raise DataFormatError(_no_column(file, sentence, "sentences", list(table.columns)))
        wrong = [value for value in table[sentence] if not isinstance(value, str)]
        if wrong:
            raise DataFormatError(f"{file} has {wrong[0]!r} for a sentence; expected text in every row.")
        chosen = {"sentence": table[sentence].str.strip()}
        if label in table:
            chosen["label"] = table[label].astype(str)
        tables.append(pd.DataFrame(chosen, dtype=object))
    whole = pd.concat(tables, join="inner", ignore_index=True)
    if whole.empty:
        raise DataFormatError(f"{files[0]} holds no sentence.")
    return whole


def _no_column(file: Path, column: str, what: str, names: Sequence[str] = ()) -> str:
    among = f" among {', '.join(names)}" if names else ""
    return f"{file} has no column {column!r} with {what}{among}; name it by sentence=… or label=…."
