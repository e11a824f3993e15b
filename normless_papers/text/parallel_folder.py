"""Parallel text of a folder: one sentence per line, plain or gzip; the files of IWSLT's talks; Parquet. Multi30k."""

from __future__ import annotations

import html
import re
from functools import partial
from itertools import chain
from pathlib import Path

from normless.errors import DataFormatError, DataNotFoundError
from normless_lab.data import BY_ROOT, fetch_files, find_or_fetch, find_splits, first_of
from normless_papers.text.labelled_tables import VALIDATION_STEMS, read_columns, read_lines
from normless_papers.text.text_sets import Pairs, ParallelText

# Each of so many training pairs is for validation, as in the preparation of Ott et al. (2018).
VALIDATION_EVERY = 23

_TEXT_TAGS = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r"<seg id=\"[^\"]*\">(.*?)</seg>")

# The commit of github.com/multi30k/dataset with the digests below.
ADDRESS = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)

DIGESTS = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
TEST = "test_2016_flickr"

# A description of the files, and the pairs for training, validation and test.
Sets = tuple[str, Pairs, Pairs, Pairs]


def parallel_text(*, root: Path, source: str = "de", target: str = "en", test: str | None = None) -> ParallelText:
    """Sentence pairs of your own: a folder of text files, of IWSLT's talks, or of Parquet files.

    Args:
        source, target: of the language to translate and the other, the files' ending or the column's name.
        test: stem of the test files, where they are text files; the only one there is if None.
    """
    sets = _find_sets(root, source, target, name=root.name, test=test)
    if sets is None:
        raise DataNotFoundError(
            f"{root} has neither train.{source} with train.{target} (plain or .gz), nor the talks of IWSLT "
            f"(train.tags.{source}-{target}.{source}), nor *train*.parquet. Name the right folder "
            f"{BY_ROOT}, or the languages by source=… and target=…."
        )
    kind, *pairs = sets
    return ParallelText("parallel_text", f"{kind} of {root.resolve().name}", (source, target), *pairs)


def multi30k(*, root: Path, download: bool, source: str = "de", target: str = "en", test: str = TEST) -> ParallelText:
    """Multi30k (Elliott et al. 2016): captions of pictures in English, and their translations.

    29,000 training pairs, from text files or Parquet in ``root/multi30k`` or ``root``, or by download (de and en).

    Args:
        source, target: the language to translate and the other: "de", "en", or "fr" and "cs" if there are files.
        test: stem of the test files.
    """

    def fetch(folder: Path) -> None:
        if {source, target} != {"de", "en"} or test != TEST:
            raise DataNotFoundError(
                f"Only German and English (de, en) with {TEST} can be downloaded, not {source}, {target} and {test}."
            )
        fetch_files(folder, ADDRESS, DIGESTS)

    layout = (
        f"train.{source}, train.{target}, val.{source}, val.{target}, {test}.{source} and {test}.{target}, plain or "
        ".gz, or Parquet files (*train*.parquet, *val*.parquet and *test*.parquet)"
    )
    read = partial(_find_sets, source=source, target=target, name="multi30k", test=test)
    kind, *pairs = find_or_fetch("multi30k", root, [read], fetch, layout=layout, download=download)
    return ParallelText("multi30k", f"{kind}, test set {test}", (source, target), *pairs)


def _find_sets(folder: Path, source: str, target: str, *, name: str, test: str | None) -> Sets | None:
    """Return the three sets of a folder, or of its ``data/`` or ``de-en/`` as in the Hub's Parquet; else None."""
    places = (folder / below for below in (".", "data", f"{source}-{target}", f"{target}-{source}"))
    return (
        _read_text_files(folder, source, target, test)
        or _read_iwslt(folder, source, target)
        or first_of(lambda place: _read_parquet(place, name, source, target), places)
    )


def _read_text_files(folder: Path, source: str, target: str, test: str | None) -> Sets | None:
    """Read the three sets of a folder; return None without training files.

    The layouts of Multi30k (``train.de``, ``val.de``, ``test_2016_flickr.de``) and of prepared IWSLT
    (``valid.de``, ``test.de``), or with both languages in the name (``train.de-en.de``). A plain file is taken
    before a compressed one of the same name.
    """

    def pairs(*stems: str) -> Pairs | None:
        names = (f"{stem}{middle}" for stem in stems for middle in ("", f".{source}-{target}", f".{target}-{source}"))
        for name in names:
            files = [
                [path for ending in ("", ".gz") if (path := folder / f"{name}.{side}{ending}").is_file()]
                for side in (source, target)
            ]
            if all(files):
                first, second = files[0][0], files[1][0]
                return Pairs.of_lines(f"{first} and {second}", read_lines(first), read_lines(second))
        return None

    def needed(*stems: str) -> Pairs:
        found = pairs(*stems)
        if found is None:
            wanted = " or ".join(f"{stem}.{source} with {stem}.{target}" for stem in stems)
            raise DataFormatError(
                f"{folder} has training text in {source} and {target}, but no {wanted} (or .gz) beside it."
            )
        return found

    train = pairs("train")
    if train is None:
        return None
    tests = [test or "test"]
    if test is None and pairs("test") is None:
        stems = sorted({path.name.partition(".")[0] for path in folder.glob("test*")})
        tests = [stem for stem in stems if pairs(stem) is not None] or tests
    if len(tests) > 1:
        raise DataFormatError(f"{folder} has several test sets: {', '.join(tests)}; name one by test=….")
    return "text files", train, needed(*VALIDATION_STEMS), needed(*tests)


def _read_iwslt(folder: Path, source: str, target: str) -> Sets | None:
    """Read the talks in their distributed format; return None if the folder does not contain ``train.tags.…``.

    Training text consists of all lines except tags; titles and descriptions stay. Each 23rd pair is used for
    validation. The test set consists of all ``IWSLT*.xml`` of the folder, in the order of their names
    (for 2014: dev2010, tst2010, tst2011, tst2012 and the TEDx dev2012).
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        training = [folder / f"train.tags.{pair}.{side}" for side in (source, target)]
        if all(path.is_file() for path in training):
            break
    else:
        return None
    whole = Pairs.of_lines(f"{training[0]} and {training[1]}", *map(_talk_lines, training))
    held_out = [row % VALIDATION_EVERY == VALIDATION_EVERY - 1 for row in range(len(whole.source))]
    names = sorted(path.name[: -len(f"{source}.xml")] for path in folder.glob(f"IWSLT*.{pair}.{source}.xml"))
    if not names:
        raise DataFormatError(f"{folder} has train.tags.{pair}.{source} but no IWSLT*.{pair}.{source}.xml beside it.")
    talks = [_talk_pairs(*(folder / f"{name}{side}.xml" for side in (source, target))) for name in names]
    test = Pairs(*(tuple(chain(*side)) for side in zip(*talks, strict=True)))
    return "talks", whole.take([not held for held in held_out]), whole.take(held_out), test


def _talk_lines(path: Path) -> list[str]:
    lines = (_TEXT_TAGS.sub("", line) for line in read_lines(path))
    return [line for line in lines if not line.lstrip().startswith("<")]


def _talk_pairs(source: Path, target: Path) -> Pairs:
    if not target.is_file():
        raise DataFormatError(f"{target} is missing, but {source.name} is there.")
    sides = (
        [html.unescape(match[1]) for line in read_lines(path) if (match := _SEGMENT.search(line))]
        for path in (source, target)
    )
    return Pairs.of_lines(f"{source} and {target}", *sides)


def _read_parquet(folder: Path, name: str, source: str, target: str) -> Sets | None:
    """Read ``*train*.parquet``, ``*val*.parquet`` and ``*test*.parquet``; return None without a training file.

    A sentence pair is a row of a column of structs {"de": …, "en": …}, or of two columns with the languages' names.
    """
    splits = find_splits(folder, name, ("train", "val", "test"))
    if splits is None:
        return None
    tables = (read_columns(files, {"source": source, "target": target}) for files in splits)
    train, validation, test = (Pairs(tuple(table["source"]), tuple(table["target"])) for table in tables)
    return "Parquet files", train, validation, test
