"""Labelled and parallel text read from small files in the layouts of GLUE, Multi30k, IWSLT and the Hub."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normless.errors import DataFormatError, DataNotFoundError
from normless_lab.data import load_data
from normless_lab.data._downloads import fetch_files
from normless_papers.text import parallel_folder
from normless_papers.text.text_sets import LabelledText, Pairs, ParallelText

TRAIN = [('a "smile" , but', "1"), ("it 's dull ", "0"), ("hide new secretions", "0")]
DEV = [("a gem", "1"), ("no , thanks", "0")]
SETS = {
    "train": (["Zwei Büsche.", "Ein Hund", "Drei"], ["Two bushes.", "A dog", "Three"]),
    "val": (["Vier"], ["Four"]),
    "test": (["Fünf", "Sechs"], ["Five", "Six"]),
}
Spoil = Callable[[Path], object]


def labelled(folder: Path, name: str = "labelled_text") -> LabelledText:
    return load_data(name, root=folder, kind=LabelledText)


def parallel(folder: Path, name: str = "parallel_text") -> ParallelText:
    return load_data(name, root=folder, download=False, kind=ParallelText)


def tsv(rows: Sequence[tuple[str, ...]], header: str = "sentence\tlabel", end: str = "\n") -> bytes:
    return "".join(f"{line}{end}" for line in [header, *("\t".join(row) for row in rows)]).encode()


def glue(folder: Path, end: str = "\n") -> None:
    """SST-2 as GLUE packs it: test sentences without labels."""
    folder.mkdir(parents=True)
    (folder / "train.tsv").write_bytes(tsv(TRAIN, end=end))
    (folder / "dev.tsv").write_bytes(tsv(DEV, end=end))
    (folder / "test.tsv").write_bytes(tsv([("0", "unlabelled")], "index\tsentence", end))


@pytest.mark.parametrize(("end", "data"), [("\n", "sst2"), ("\r\n", "labelled_text(label='label')")])
def test_labelled_sentences_are_tested_on_dev(tmp_path: Path, end: str, data: str) -> None:
    glue(tmp_path / "SST-2", end)
    text = labelled(tmp_path if data == "sst2" else tmp_path / "SST-2", data)
    assert text.classes == ("0", "1")
    for part, rows in ((text.train, TRAIN), (text.test, DEV)):
        assert part.sentences == tuple(sentence.strip() for sentence, _ in rows)
        assert part.labels == tuple(int(label) for _, label in rows)


def write_text(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_sets(folder: Path, names: str = "train val test", suffix: str = "", middle: str = "") -> None:
    for name, sides in zip(names.split(), SETS.values(), strict=True):
        for language, sentences in zip(("de", "en"), sides, strict=True):
            write_text(folder / f"{name}{middle}.{language}{suffix}", sentences)


def write_hub(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, german: Sequence[str], english: Sequence[str]) -> None:
        rows = [{"de": sentence, "en": other} for sentence, other in zip(german, english, strict=True)]
        pq.write_table(pa.table({"translation": pa.array(rows)}), folder / f"{name}.parquet")

    for number, part in enumerate((slice(0, 1), slice(1, None))):
        write(f"train-0000{number}-of-00002", *(side[part] for side in SETS["train"]))
    write("validation-00000-of-00001", *SETS["val"])
    write("test-00000-of-00001", *SETS["test"])


LAYOUTS: list[Spoil] = [
    lambda folder: write_sets(folder, "train dev test", "", ".de-en"),
    lambda folder: write_sets(folder, "train validation test2017", ".gz", ".en-de"),
    lambda folder: write_hub(folder / "de-en"),
]


@pytest.mark.parametrize("write", LAYOUTS)
def test_parallel_text_is_read(tmp_path: Path, write: Spoil) -> None:
    write(tmp_path)
    assert_is_the_text(parallel(tmp_path))


def assert_is_the_text(text: ParallelText) -> None:
    for pairs, (german, english) in zip((text.train, text.validation, text.test), SETS.values(), strict=True):
        assert (pairs.source, pairs.target) == (tuple(german), tuple(english))
    assert text.languages == ("de", "en")


def test_multi30k_is_read_from_its_folder(tmp_path: Path) -> None:
    write_sets(tmp_path / "multi30k", "train val test_2016_flickr", ".gz")
    text = parallel(tmp_path, "multi30k")
    assert (text.name, text.title()) == ("multi30k", "multi30k, de to en")
    assert_is_the_text(text)
    assert parallel(tmp_path, "multi30k(source='en', target='de')").train == Pairs(*reversed(text.train))


def spoil_gzip(folder: Path) -> None:
    (folder / "val.de").unlink()
    (folder / "val.de.gz").write_bytes(gzip.compress(b"Vier\n" * 99)[:-9])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: write_text(folder / "val.de", ["Vier", "Fünf"]), r"val\.de and .*val\.en hold 2 and 1 sent"),
        (spoil_gzip, r"val\.de\.gz is not text in UTF-8, compressed by gzip"),
        (lambda folder: (folder / "val.de").unlink(), r"no val\.de with val\.en or valid\.de"),
    ],
)
def test_damaged_text_files_are_named(tmp_path: Path, spoil: Spoil, message: str) -> None:
    write_sets(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataFormatError, match=message):
        parallel(tmp_path)


def test_talks_are_read_as_distributed(tmp_path: Path) -> None:
    for side, (kind, hello) in {"de": ("Titel", "Hallo"), "en": ("Title", "Hello")}.items():
        head = ["<url>http://x</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>", f"<title>{kind}</title>"]
        write_text(tmp_path / f"train.tags.de-en.{side}", [*head, *(f" {hello} {n} < 3 " for n in range(45))])
        for name in ("tst2010", "dev2010"):
            first, second = f'<seg id="1"> {hello} &amp; {name} </seg>', f'<seg id="2">{hello}</seg>'
            write_text(tmp_path / f"IWSLT14.TED.{name}.de-en.{side}.xml", ["<doc>", first, "</doc>", second])
    text = parallel(tmp_path)
    whole = [("Titel", "Title"), *((f"Hallo {n} < 3", f"Hello {n} < 3") for n in range(45))]
    held = [whole[22], whole[45]]
    assert list(zip(*text.validation, strict=True)) == held
    assert list(zip(*text.train, strict=True)) == [pair for pair in whole if pair not in held]
    assert text.test.source == ("Hallo & dev2010", "Hallo", "Hallo & tst2010", "Hallo")


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_files_are_fetched_once_and_each_against_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    digests = {}
    for name in parallel_folder.DIGESTS:
        content = gzip.compress(f"{name}\n".encode())
        (source / name).write_bytes(content)
        digests[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(parallel_folder, "ADDRESS", source.as_uri() + "/")
    monkeypatch.setattr(parallel_folder, "DIGESTS", digests)
    text = load_data("multi30k", root=root, kind=ParallelText)
    assert (text.train.source, text.test.target) == (("train.de.gz",), ("test_2016_flickr.en.gz",))
    assert files_in(root) == sorted(digests)
    for name in digests:
        (source / name).unlink()
    assert load_data("multi30k", root=root, kind=ParallelText) == text
    (source / "a.gz").write_bytes(b"not what it should be")
    with pytest.raises(DataNotFoundError, match="its digest is"):
        fetch_files(tmp_path / "into", source.as_uri() + "/", {"a.gz": "0" * 64})
    assert files_in(tmp_path / "into") == []
