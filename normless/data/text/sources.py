"""The table of labelled texts, and `load_labelled_text`, which reads one by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normless.data.errors import DataNotFoundError
from normless.data.text.labelled_tables import Columns, read_labelled_files
from normless.data.text.labelled_text import LabelledText
from normless.data.registry import load_by_name
from normless.data.text.sentiment import sentiment


def sst2(
    *, root: Path, download: bool, train: int | None = None, test: int | None = None, test_file: str | None = None
) -> LabelledText:
    """Load the Stanford Sentiment Treebank with two classes from GLUE's files, or from those of the Hub.

    They lie in ``root/SST-2``, ``root/sst2`` or ``root``, or in ``data`` within: ``train.tsv`` and ``dev.tsv``, or
    Parquet. The test sentences of GLUE have no labels, so that the accuracy is that of dev.

    Args:
        root: the folder of data sets, or the set's own.
        download: without meaning here, GLUE's are not downloaded.
        train: number of training sentences, the first ones; all if None.
        test: number of test sentences, the first ones; all if None.
        test_file: stem of the file to test on; "dev" in what GLUE distributes.

    Raises:
        DataNotFoundError: it is not there.
        DataFormatError: a file does not hold what it should.
    """
    columns = Columns("sentence", "label")
    for folder in [root / name / within for name in ("SST-2", "sst2", ".") for within in (".", "data")]:
        found = read_labelled_files(folder, columns, name="sst2", test_file=test_file)
        if found is not None:
            text = LabelledText("sst2", found.classes, found.kind, found.train, found.test)
            return text.subset(train=train, test=test)
    raise DataNotFoundError(
        f"The data set sst2 is in none of {root / 'SST-2'}, {root / 'sst2'} and {root}: expected train.tsv and "
        "dev.tsv as GLUE distributes them, or *train*.parquet. Put them there, or name their folder with root."
    )


def labelled_text(
    *,
    root: Path,
    download: bool,
    sentence: str = "sentence",
    label: str = "label",
    train: int | None = None,
    test: int | None = None,
    test_file: str | None = None,
) -> LabelledText:
    """Load the labelled sentences of the folder ``root``; ``download`` has no use.

    It holds ``train`` and ``test`` or ``dev``, as .tsv, .csv (plain or .gz) or .parquet, with a header.

    Args:
        root: the folder.
        download: without meaning here.
        sentence: name of the column with sentences.
        label: name of the column with classes, which are numbers or names.
        train: number of training sentences, the first ones; all if None.
        test: number of test sentences, the first ones; all if None.
        test_file: stem of the file to test on.

    Raises:
        DataNotFoundError: the folder has no training file.
        DataFormatError: a file does not hold what it should.
    """
    found = read_labelled_files(root, Columns(sentence, label), name=root.name, test_file=test_file)
    if found is None:
        raise DataNotFoundError(
            f"{root} has no train.tsv, train.csv (plain or .gz) or *train*.parquet. Name the right folder with root."
        )
    origin = f"{root.resolve().name}/{found.kind}"
    text = LabelledText("labelled_text", found.classes, origin, found.train, found.test)
    return text.subset(train=train, test=test)


TEXT_SOURCES: dict[str, Callable[..., LabelledText]] = {
    "sentiment": sentiment,
    "sst2": sst2,
    "labelled_text": labelled_text,
}


def load_labelled_text(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> LabelledText:
    """Load labelled sentences by name, as in ``sentiment`` or ``sst2(train=2000)``.

    Args:
        name: one of `TEXT_SOURCES`, with options of its own in brackets if it has any.
        root: the folder with the data, by default `default_root`.
        download: whether a set that is not there may be downloaded.
        options: the same as in brackets.

    Raises:
        ValueError: no set has this name, or it has no such option.
        DataNotFoundError: it is not there.
        DataFormatError: a file does not hold what it should.
    """
    return load_by_name(TEXT_SOURCES, name, root=root, download=download, options=options)
