"""The raw files of the IWSLT talks: ``train.tags.de-en.de`` and ``IWSLT14.TED.tst2010.de-en.de.xml``."""

from __future__ import annotations

import html
import re
from pathlib import Path

from normless.data.parallel.parallel_text import Pairs, PairSets, checked_pairs
from normless.data.tables import read_lines
from normless.errors import DataFormatError

# Every so many training pairs one is for validation, as in the preparation that Ott et al. (2018) trained on.
VALIDATION_EVERY = 23

_TEXT_TAGS = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r"<seg id=\"[^\"]*\">(.*?)</seg>")


def read_iwslt(folder: Path, source: str, target: str) -> PairSets | None:
    """Read the talks as they are distributed; None where the folder has no ``train.tags.…``.

    Training text is every line but those of tags, of which titles and descriptions stay; each 23rd pair is put
    aside for validation. The test set is all ``IWSLT*.xml`` of the folder together, in the order of their names
    (for 2014: dev2010, tst2010, tst2011, tst2012 and the TEDx dev2012).

    Args:
        folder: where the files lie.
        source: ending of the language to translate, as "de".
        target: ending of the language to translate to, as "en".

    Raises:
        DataFormatError: a language lacks files the other has, or lines do not go with each other.
    """
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        training = [folder / f"train.tags.{pair}.{side}" for side in (source, target)]
        if all(path.is_file() for path in training):
            break
    else:
        return None
    whole = checked_pairs(f"{training[0]} and {training[1]}", *(_talk_lines(path) for path in training))
    aside = [row % VALIDATION_EVERY == VALIDATION_EVERY - 1 for row in range(whole.size)]
    train, validation = _some(whole, [not one for one in aside]), _some(whole, aside)
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
    return [html.unescape(found[1]) for line in read_lines(path) if (found := _SEGMENT.search(line))]


def _some(pairs: Pairs, kept: list[bool]) -> Pairs:
    sides = (
        tuple(line for line, keep in zip(side, kept, strict=True) if keep) for side in (pairs.source, pairs.target)
    )
    return Pairs(*sides)
