"""Labelled sentences in tables: GLUE's ``train.tsv`` and ``dev.tsv``, comma-separated files, and Parquet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from normless.errors import DataFormatError, DataNotFoundError
from normless_lab.data import BY_ROOT, find_shards, first_of
from normless_papers.text.reading import VALIDATION_STEMS, read_columns
from normless_papers.text.text_sets import LabelledSentences, LabelledText

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
