"""Parallel text: sentences of two languages, line by line translations of each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from normless.data.text_sets import TextSets
from normless.errors import DataFormatError


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, in order.

    Attributes:
        source: N sentences to translate.
        target: N sentences, what they should become.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number N of pairs."""
        return len(self.source)

    @property
    def swapped(self) -> Pairs:
        """The same pairs in the other direction."""
        return Pairs(self.target, self.source)

    def first(self, size: int) -> Pairs:
        """The first pairs, at most `size` of them."""
        return Pairs(self.source[:size], self.target[:size])

    def without_empty(self) -> Pairs:
        """The pairs of which neither side is empty."""
        kept = [(one, other) for one, other in zip(self.source, self.target, strict=True) if one and other]
        return Pairs(tuple(one for one, _ in kept), tuple(other for _, other in kept))


@dataclass(frozen=True)
class ParallelText(TextSets):
    """A training, a validation and a test set of sentence pairs.

    Attributes:
        name: the name it is loaded by.
        languages: short names of the source and the target language, such as ("de", "en").
        origin: where the text came from, in words.
        train: pairs to learn from.
        validation: pairs to choose settings by.
        test: pairs to report BLEU on.
    """

    kind: ClassVar[str] = "parallel text"
    parts: ClassVar[tuple[str, ...]] = ("train", "validation", "test")
    unit: ClassVar[str] = "pairs"

    name: str
    languages: tuple[str, str]
    origin: str
    train: Pairs
    validation: Pairs
    test: Pairs

    def _title(self) -> str:
        return f"{self.name}, {' to '.join(self.languages)}"

    def _lines(self) -> Iterator[str]:
        for pairs in (self.train, self.validation, self.test):
            yield from pairs.source
            yield from pairs.target


@dataclass(frozen=True)
class PairSets:
    """In words what the files were, and the three sets read from them."""

    kind: str
    train: Pairs
    validation: Pairs
    test: Pairs


def checked_pairs(origin: str, source: Sequence[str], target: Sequence[str]) -> Pairs:
    """Make pairs of sentences read from files (the origin), without the white space around them."""
    if len(source) != len(target) or not source:
        raise DataFormatError(
            f"{origin} hold {len(source)} and {len(target)} sentences; expected as many translations as sentences, "
            "line by line."
        )
    return Pairs(tuple(line.strip() for line in source), tuple(line.strip() for line in target))
