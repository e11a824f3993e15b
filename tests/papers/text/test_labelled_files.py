"""Labelled sentences read from small files in the layout of GLUE, with commas, and of the Hub."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normless_lab.data import DataFormatError, DataNotFoundError, load_data
from normless_papers.text.text_sets import LabelledText

TRAIN = [('a "smile" , but', "1"), ("it 's dull ", "0"), ("hide new secretions", "0")]
DEV = [("a gem", "1"), ("no , thanks", "0")]


def tsv(rows: list[tuple[str, ...]], header: str = "sentence\tlabel", end: str = "\n") -> bytes:
    return "".join(f"{line}{end}" for line in [header, *("\t".join(row) for row in rows)]).encode()


def glue(folder: Path) -> Path:
    """SST-2 as GLUE packs it: test sentences without labels."""
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_bytes(tsv(TRAIN))
    (folder / "dev.tsv").write_bytes(tsv(DEV))
    (folder / "test.tsv").write_bytes(tsv([("0", "unlabelled")], "index\tsentence"))
    return folder


def assert_is_the_text(text: LabelledText, classes: tuple[str, ...] = ("0", "1")) -> None:
    assert text.classes == classes
    for part, rows in ((text.train, TRAIN), (text.test, DEV)):
        assert part.sentences == tuple(sentence.strip() for sentence, _ in rows)
        assert part.labels == tuple(int(label) for _, label in rows)


@pytest.mark.parametrize("place", ["SST-2", "sst2", "."])
def test_sst2_is_tested_on_dev(tmp_path: Path, place: str) -> None:
    glue(tmp_path / "root" / place)
    text = load_data("sst2", root=tmp_path / "root", kind=LabelledText)
    assert_is_the_text(text)
    assert text.provenance.startswith(
        "sst2: train.tsv, tested on dev; 3 train / 2 test sentences, 2 classes; sha256 "
    )
    fewer = load_data("sst2(train=2, test=1)", root=tmp_path / "root", kind=LabelledText)
    assert (fewer.size("train"), fewer.size("test")) == (2, 1)


def test_files_of_commas_keep_what_is_in_quotes(tmp_path: Path) -> None:
    for name, rows in (("train", TRAIN), ("val", DEV)):
        lines = io.StringIO()
        csv.writer(lines).writerows([("id", "verdict", "text"), *((7, label, text) for text, label in rows)])
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(lines.getvalue().encode()))
    assert_is_the_text(load_data("labelled_text(sentence='text', label='verdict')", root=tmp_path, kind=LabelledText))


def test_parquet_of_the_hub_withholds_the_classes_of_the_test_set(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    hidden = [("withheld", "-1")]
    for name, rows in (("train", TRAIN), ("validation", DEV), ("test", hidden)):
        table = {"idx": list(range(len(rows))), "sentence": [text for text, _ in rows]}
        table["label"] = [int(label) for _, label in rows]
        pq.write_table(pa.table(table), tmp_path / "data" / f"{name}-00000-of-00001.parquet")
    assert_is_the_text(load_data("sst2", root=tmp_path, kind=LabelledText))


MISTAKES = [
    ({"train": tsv(TRAIN, "text\tlabel")}, "no column 'sentence' among text, label"),
    ({"train": tsv(TRAIN, "sentence\tverdict")}, "train.tsv has no column 'label' with classes"),
    ({"train": tsv([*TRAIN, ("one cell",)])}, "The column 'label' of .*train.tsv has ''; expected text"),
    ({"train": tsv(TRAIN[1:])}, "train.tsv has one class only, '0'; expected two or more"),
    ({"train": tsv([*TRAIN, ("one", "0", "more")])}, "train.tsv is not a table of text in UTF-8 with a header"),
    ({"train": tsv([])}, "train.tsv holds no sentence"),
    ({"train": b"\xff\xfe"}, "train.tsv is not a table of text in UTF-8"),
    ({"dev": tsv([("new", "2")])}, "dev.tsv has the class '2', which train.tsv has not; that has 0, 1"),
    (
        {"dev": tsv([("0", "none")], "index\tsentence")},
        "no test or dev with classes .* dev.tsv has no classes",
    ),
]


@pytest.mark.parametrize(("files", "sentence"), MISTAKES)
def test_every_mistake_in_a_file_has_its_sentence(tmp_path: Path, files: dict[str, bytes], sentence: str) -> None:
    glue(tmp_path / "text")
    for name, content in files.items():
        (tmp_path / "text" / f"{name}.tsv").write_bytes(content)
    with pytest.raises(DataFormatError, match=sentence):
        load_data("labelled_text", root=tmp_path / "text", kind=LabelledText)


def test_a_text_that_is_not_there_says_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(
        DataNotFoundError, match=r"sst2 is in none of .*SST-2, .*: expected train\.tsv.*by --data-root \(data_"
    ):
        load_data("sst2", root=tmp_path, kind=LabelledText)
    with pytest.raises(
        DataNotFoundError, match=r"has no train\.tsv, train\.csv.* right folder by --data-root \(data_root"
    ):
        load_data("labelled_text", root=tmp_path, kind=LabelledText)
    (tmp_path / "train.tsv").write_bytes(tsv(TRAIN))
    with pytest.raises(DataFormatError, match="has training sentences, but no test or dev with classes"):
        load_data("labelled_text", root=tmp_path, kind=LabelledText)


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(tsv(TRAIN, end="\r\n"))
    (tmp_path / "dev.tsv").write_bytes(tsv(DEV, end="\r\n"))
    assert_is_the_text(load_data("labelled_text", root=tmp_path, kind=LabelledText))
