"""Parallel text in files of one sentence per line, plain or gzip: ``train.de`` and ``train.en.gz``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from normless.data.parallel.parallel_text import Pairs, PairSets, checked_pairs
from normless.data.tables import read_lines
from normless.errors import DataFormatError

VALIDATION_STEMS = ("val", "valid", "validation", "dev")


def read_text_files(folder: Path, source: str, target: str, *, test: str | None = None) -> PairSets | None:
    """Read the three sets of a folder; None where it has no training files.

    The layouts of Multi30k (``train.de``, ``val.de``, ``test_2016_flickr.de``) and of prepared IWSLT
    (``valid.de``, ``test.de``), or with both languages in the name (``train.de-en.de``). A plain file is taken
    before a compressed one of the same name.

    Args:
        folder: where the files lie.
        source: the ending of the files to translate, as "de".
        target: the ending of their translations, as "en".
        test: stem of the test files; if None ``test``, or else the only ``test…`` there is.

    Raises:
        DataFormatError: a set is incomplete, several could be the test set, or a file is no such text.
    """
    train = _files(folder, "train", source, target)
    if train is None:
        return None
    validation = _first(folder, VALIDATION_STEMS, source, target)
    tested = _first(folder, _test_stems(folder, source, target) if test is None else (test,), source, target)
    return PairSets("text files", *(read_pairs(*files) for files in (train, validation, tested)))


def read_pairs(source: Path, target: Path) -> Pairs:
    """The pairs of two files.

    Raises:
        DataFormatError: a file is not UTF-8 text, plain or gzip, or they differ in their number of lines.
    """
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
    """``test`` if it is there, else the only stem ``test…`` that both languages have."""
    if _files(folder, "test", source, target) is not None:
        return ("test",)
    pair = f"(?:{re.escape(source)}-{re.escape(target)}|{re.escape(target)}-{re.escape(source)})"
    name = re.compile(rf"(test.*?)(?:\.{pair})?\.{re.escape(source)}(?:\.gz)?")
    names = (name.fullmatch(path.name) for path in sorted(folder.glob("test*")))
    stems = {found[1] for found in names if found}
    complete = sorted(stem for stem in stems if _files(folder, stem, source, target) is not None)
    if len(complete) > 1:
        raise DataFormatError(f"{folder} has several test sets: {', '.join(complete)}; name one by test=….")
    return tuple(complete) or ("test",)
