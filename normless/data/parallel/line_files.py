"""Parallel text in files of one sentence per line, plain or gzip, or in the files of the IWSLT talks."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from normless.data.tables import VALIDATION_STEMS, read_lines
from normless.data.text_sets import Pairs, PairSets, checked_pairs
from normless.errors import DataFormatError

# Every so many training pairs one is for validation, as in the preparation that Ott et al. (2018) trained on.
VALIDATION_EVERY = 23

_TEXT_TAGS = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r"<seg id=\"[^\"]*\">(.*?)</seg>")


def read_text_files(folder: Path, source: str, target: str, *, test: str | None = None) -> PairSets | None:
    """Read the three sets of a folder; None where it has no training files.

    The layouts of Multi30k (``train.de``, ``val.de``, ``test_2016_flickr.de``) and of prepared IWSLT
    (``valid.de``, ``test.de``), or with both languages in the name (``train.de-en.de``). A plain file is taken
    before a compressed one of the same name.
    """
    train = _files(folder, "train", source, target)
    if train is None:
        return None
    validation = _first(folder, VALIDATION_STEMS, source, target)
    tested = _first(folder, _test_stems(folder, source, target) if test is None else (test,), source, target)
    return PairSets("text files", *(read_pairs(*files) for files in (train, validation, tested)))


def read_pairs(source: Path, target: Path) -> Pairs:
    """The pairs of two files."""
    return checked_pairs(f"{source} and {target}", read_lines(source), read_lines(target))


def _files(folder: Path, stem: str, source: str, target: str) -> tuple[Path, Path] | None:
    """The files of both languages with this stem, None where one is missing."""
    for middle in ("", f".{source}-{target}", f".{target}-{source}"):
        sides = [
            [path for ending in ("", ".gz") if (path := folder / f"{stem}{middle}.{side}{ending}").is_file()]
            for side in (source, target)
        ]
        if all(sides):
            return sides[0][0], sides[1][0]
    return None


def _first(folder: Path, stems: Sequence[str], source: str, target: str) -> tuple[Path, Path]:
    for stem in stems:
        files = _files(folder, stem, source, target)
        if files is not None:
            return files
    wanted = " or ".join(f"{stem}.{source} with {stem}.{target}" for stem in stems)
    raise DataFormatError(f"{folder} has training text in {source} and {target}, but no {wanted} (or .gz) beside it.")


def _test_stems(folder: Path, source: str, target: str) -> tuple[str, ...]:
    """``test`` if it exists, else the only stem ``test…`` that both languages have."""
    if _files(folder, "test", source, target) is not None:
        return ("test",)
    pair = f"(?:{re.escape(source)}-{re.escape(target)}|{re.escape(target)}-{re.escape(source)})"
    name = re.compile(rf"(test.*?)(?:\.{pair})?\.{re.escape(source)}(?:\.gz)?")
    names = (name.fullmatch(path.name) for path in sorted(folder.glob("test*")))
    stems = {match[1] for match in names if match}
    complete = sorted(stem for stem in stems if _files(folder, stem, source, target) is not None)
    if len(complete) > 1:
        raise DataFormatError(f"{folder} has several test sets: {', '.join(complete)}; name one by test=….")
    return tuple(complete) or ("test",)


def read_iwslt(folder: Path, source: str, target: str) -> PairSets | None:
    """Read the talks as they are distributed; None where the folder has no ``train.tags.…``.

    Training text is every line but those of tags, of which titles and descriptions stay; each 23rd pair is put
    aside for validation. The test set is all ``IWSLT*.xml`` of the folder together, in the order of their names
    (for 2014: dev2010, tst2010, tst2011, tst2012 and the TEDx dev2012).
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        training = [folder / f"train.tags.{pair}.{side}" for side in (source, target)]
        if all(path.is_file() for path in training):
            break
    else:
        return None
    whole = checked_pairs(f"{training[0]} and {training[1]}", *(_talk_lines(path) for path in training))
    aside = [row % VALIDATION_EVERY == VALIDATION_EVERY - 1 for row in range(whole.size)]
    train, validation = whole.take([not one for one in aside]), whole.take(aside)
    return PairSets("talks", train, validation, _evaluation(folder, pair, source, target))


def _talk_lines(path: Path) -> list[str]:
    lines = (_TEXT_TAGS.sub("", line) for line in read_lines(path))
    return [line for line in lines if not line.lstrip().startswith("<")]


def _evaluation(folder: Path, pair: str, source: str, target: str) -> Pairs:
    names = sorted(path.name[: -len(f"{source}.xml")] for path in folder.glob(f"IWSLT*.{pair}.{source}.xml"))
    if not names:
        raise DataFormatError(f"{folder} has train.tags.{pair}.{source} but no IWSLT*.{pair}.{source}.xml beside it.")
    sides: tuple[list[str], list[str]] = ([], [])
    for name in names:
        files = [folder / f"{name}{side}.xml" for side in (source, target)]
        if not files[1].is_file():
            raise DataFormatError(f"{files[1]} is missing, but {files[0].name} is there.")
        pairs = checked_pairs(f"{files[0]} and {files[1]}", *(_segments(path) for path in files))
        sides[0].extend(pairs.source)
        sides[1].extend(pairs.target)
    return Pairs(tuple(sides[0]), tuple(sides[1]))


def _segments(path: Path) -> list[str]:
    return [html.unescape(match[1]) for line in read_lines(path) if (match := _SEGMENT.search(line))]
