"""Parallel text: sentences of two languages, line by line translations of each other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from normless.data.errors import DataFormatError


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
class ParallelText:
    """A training, a validation and a test set of sentence pairs.

    Attributes:
        name: the name `load_parallel_text` knows it by.
        languages: short names of the source and the target language, such as ("de", "en").
        origin: where the text came from, in words.
        train: pairs to learn from.
        validation: pairs to choose settings by.
        test: pairs to report BLEU on.
    """

    name: str
    languages: tuple[str, str]
    origin: str
    train: Pairs
    validation: Pairs
    test: Pairs

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: name, direction, origin, sizes and checksum."""
        sizes = f"{self.train.size} train / {self.validation.size} validation / {self.test.size} test pairs"
        direction = " to ".join(self.languages)
        return f"{self.name}, {direction}: {self.origin}; {sizes}; sha256 {self.checksum[:12]}"

    @cached_property
    def checksum(self) -> str:
        """SHA-256, in hexadecimal, of all sentences, each with its line's end."""
        digest = hashlib.sha256()
        for pairs in (self.train, self.validation, self.test):
            for side in (pairs.source, pairs.target):
                digest.update("".join(f"{sentence}\n" for sentence in side).encode())
        return digest.hexdigest()

    def subset(
        self, *, train: int | None = None, validation: int | None = None, test: int | None = None
    ) -> ParallelText:
        """The same text with the first pairs of each set only; a size left out keeps the whole set.

        Raises:
            ValueError: a size is below 1 or above what there is.
        """
        sizes = {"train": train, "validation": validation, "test": test}
        kept = {name: size for name, size in sizes.items() if size is not None}
        for name, size in kept.items():
            whole: int = getattr(self, name).size
            if not 1 <= size <= whole:
                raise ValueError(f"A subset of {self.name} has 1 to {whole} {name} pairs, not {size}.")
        parts = [f"the first {size} of {getattr(self, name).size} {name}" for name, size in kept.items()]
        origin = f"{self.origin}, {' and '.join(parts)}" if parts else self.origin
        return replace(self, origin=origin, **{name: getattr(self, name).first(size) for name, size in kept.items()})


@dataclass(frozen=True)
class PairSets:
    """In words what the files were, and the three sets read from them."""

    kind: str
    train: Pairs
    validation: Pairs
    test: Pairs


def checked_pairs(origin: str, source: Sequence[str], target: Sequence[str]) -> Pairs:
    """Make pairs of sentences read from files (the origin), without the white space around them.

    Raises:
        DataFormatError: there are none, or not as many on both sides.
    """
    if len(source) != len(target) or not source:
        raise DataFormatError(
            f"{origin} hold {len(source)} and {len(target)} sentences; expected as many translations as sentences, "
            "line by line."
        )
    return Pairs(tuple(line.strip() for line in source), tuple(line.strip() for line in target))
