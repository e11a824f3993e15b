"""Parallel text read from small files in the layouts of Multi30k, IWSLT and the Hub."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normless_lab.data import DataFormatError, load_data
from normless_papers.text.text_sets import Pairs, ParallelText

SETS = {
    "train": (["Zwei Büsche.", "Ein Hund", "Drei"], ["Two bushes.", "A dog", "Three"]),
    "val": (["Vier"], ["Four"]),
    "test": (["Fünf", "Sechs"], ["Five", "Six"]),
}


def write_text(path: Path, lines: Sequence[str], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_sets(folder: Path, names: Sequence[str], suffix: str = "", middle: str = "") -> None:
    for name, (german, english) in zip(names, SETS.values(), strict=True):
        write_text(folder / f"{name}{middle}.de{suffix}", german)
        write_text(folder / f"{name}{middle}.en{suffix}", english)


def assert_is_the_text(text: ParallelText) -> None:
    for pairs, (german, english) in zip((text.train, text.validation, text.test), SETS.values(), strict=True):
        assert pairs.source == tuple(german)
        assert pairs.target == tuple(english)
    assert text.languages == ("de", "en")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("names", "middle"),
    [
        (("train", "val", "test_2016_flickr"), ""),
        (("train", "valid", "test"), ""),
        (("train", "dev", "test"), ".de-en"),
        (("train", "validation", "test2017"), ".en-de"),
    ],
)
def test_text_files_are_read(tmp_path: Path, names: Sequence[str], suffix: str, middle: str) -> None:
    write_sets(tmp_path, names, suffix, middle)
    assert_is_the_text(load_data("parallel_text", root=tmp_path, kind=ParallelText))


@pytest.mark.parametrize("inside", [True, False])
def test_multi30k_is_read_from_its_folder_or_the_root(tmp_path: Path, inside: bool) -> None:
    write_sets(tmp_path / "multi30k" if inside else tmp_path, ("train", "val", "test_2016_flickr"), ".gz")
    text = load_data("multi30k", root=tmp_path, download=False, kind=ParallelText)
    assert_is_the_text(text)
    assert text.provenance.startswith(
        "multi30k, de to en: text files, test set test_2016_flickr; 3 train / 1 validation / 2 test pairs; sha256 "
    )
    other = load_data("multi30k(source='en', target='de')", root=tmp_path, download=False, kind=ParallelText)
    assert other.train == Pairs(*reversed(text.train))


def spoil_count(folder: Path) -> None:
    write_text(folder / "val.de", ["Vier", "Fünf"])


def spoil_gzip(folder: Path) -> None:
    (folder / "val.de").unlink()
    (folder / "val.de.gz").write_bytes(gzip.compress(b"Vier\n" * 99)[:-9])


def spoil_encoding(folder: Path) -> None:
    (folder / "val.de").write_bytes("Fünf\n".encode("latin-1"))


def spoil_emptied(folder: Path) -> None:
    for side in ("de", "en"):
        (folder / f"val.{side}").write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_count, r"val\.de and .*val\.en hold 2 and 1 sentences; expected as many"),
        (spoil_gzip, r"val\.de\.gz is not text in UTF-8, compressed by gzip"),
        (spoil_encoding, r"val\.de is not text in UTF-8"),
        (spoil_emptied, "hold 0 and 0 sentences"),
        (lambda folder: (folder / "val.de").unlink(), r"no val\.de with val\.en or valid\.de"),
        (lambda folder: (folder / "test.en").unlink(), r"no test\.de with test\.en \(or \.gz\)"),
    ],
)
def test_damaged_text_files_are_named(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    write_sets(tmp_path, ("train", "val", "test"))
    spoil(tmp_path)
    with pytest.raises(DataFormatError, match=message):
        load_data("parallel_text", root=tmp_path, kind=ParallelText)


def write_talks(folder: Path) -> None:
    for side, (kind, hello) in {"de": ("Titel", "Hallo"), "en": ("Title", "Hello")}.items():
        head = ["<url>http://x</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>", f"<title>{kind}</title>"]
        write_text(folder / f"train.tags.de-en.{side}", [*head, *(f" {hello} {n} < 3 " for n in range(45))])
        for name in ("IWSLT14.TED.tst2010", "IWSLT14.TED.dev2010"):
            lines = [
                "<doc>",
                f'<seg id="1"> {hello} &amp; {name[-7:]} </seg>',
                "</doc>",
                f'<seg id="2">{hello}</seg>',
            ]
            write_text(folder / f"{name}.de-en.{side}.xml", lines)


def test_talks_are_read_as_distributed(tmp_path: Path) -> None:
    write_talks(tmp_path)
    text = load_data("parallel_text", root=tmp_path, kind=ParallelText)
    whole = [("Titel", "Title"), *((f"Hallo {n} < 3", f"Hello {n} < 3") for n in range(45))]
    held = [whole[22], whole[45]]
    assert list(zip(text.validation.source, text.validation.target, strict=True)) == held
    train = list(zip(text.train.source, text.train.target, strict=True))
    assert train == [pair for pair in whole if pair not in held]
    assert text.test.source == ("Hallo & dev2010", "Hallo", "Hallo & tst2010", "Hallo")
    other = load_data("parallel_text(source='en', target='de')", root=tmp_path, kind=ParallelText)
    assert other.test == Pairs(*reversed(text.test))
    (tmp_path / "IWSLT14.TED.dev2010.de-en.en.xml").unlink()
    with pytest.raises(DataFormatError, match=r"dev2010\.de-en\.en\.xml is missing"):
        load_data("parallel_text", root=tmp_path, kind=ParallelText)


def write_hub(folder: Path, *, struct: bool, train_shards: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, german: Sequence[str], english: Sequence[str]) -> None:
        columns = {"de": pa.array(german), "en": pa.array(english)}
        rows = pa.array([{"de": sentence, "en": other} for sentence, other in zip(german, english, strict=True)])
        pq.write_table(pa.table({"translation": rows} if struct else columns), folder / name)

    german, english = SETS["train"]
    for number in range(train_shards):
        part = slice(0, 1) if number == 0 else slice(1, None)
        write(f"train-0000{number}-of-00002.parquet", german[part], english[part])
    write("validation-00000-of-00001.parquet", *SETS["val"])
    write("test-00000-of-00001.parquet", *SETS["test"])


@pytest.mark.parametrize("below", [".", "data", "de-en"])
@pytest.mark.parametrize("struct", [True, False])
def test_hub_pairs_are_read(tmp_path: Path, below: str, struct: bool) -> None:
    write_hub(tmp_path / below, struct=struct)
    assert_is_the_text(load_data("parallel_text", root=tmp_path, kind=ParallelText))
