"""Labelled and parallel text: parts of sentences, subsets, a checksum, a line of provenance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from normless.errors import DataFormatError


class TextSets:
    """A text in parts, each a tuple of columns of N sentences, classes or translations; frozen dataclasses.

    Attributes:
        kind: description of the text.
        parts: names of the fields with sentences.
        unit: unit of their sizes.
        name: the name for loading.
        origin: description of the source.
    """

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    unit: ClassVar[str]

    name: str
    origin: str

    def _title(self) -> str:
        return self.name

    def _details(self) -> str:
        return ""

    def _lines(self) -> Iterator[str]:
        raise NotImplementedError

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: name, origin, sizes and checksum."""
        sizes = " / ".join(f"{getattr(self, name).size} {name}" for name in self.parts)
        return f"{self._title()}: {self.origin}; {sizes} {self.unit}{self._details()}; sha256 {self.checksum[:12]}"

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the content in hexadecimal."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(f"{line}\n".encode())
        return digest.hexdigest()

    def subset(self, **sizes: int | None) -> Self:
        """The same text with the first sentences of some parts only; a size of None keeps the whole part.

        Raises:
            ValueError: a size is below 1 or above the number of sentences.
        """
        origins, parts = [], {}
        for name, size in sizes.items():
            if size is not None:
                part = getattr(self, name)
                if not 1 <= size <= part.size:
                    raise ValueError(f"A subset of {self.name} has 1 to {part.size} {name} {self.unit}, not {size}.")
                origins.append(f"the first {size} of {part.size} {name}")
                parts[name] = type(part)(*(column[:size] for column in part))
        same: Any = self
        origin = f"{self.origin}, {' and '.join(origins)}" if origins else self.origin
        smaller: Self = replace(same, origin=origin, **parts)
        return smaller


class LabelledSentences(NamedTuple):
    """N sentences and the number of the class of each, from 0."""

    sentences: tuple[str, ...]
    labels: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number N of sentences."""
        return len(self.sentences)


@dataclass(frozen=True)
class LabelledText(TextSets):
    """A training and a test set of labelled sentences.

    The checksum is that of the names of the `classes`, in the order of their numbers, and of all sentences, each
    after its label.
    """

    kind: ClassVar[str] = "labelled text"
    parts: ClassVar[tuple[str, ...]] = ("train", "test")
    unit: ClassVar[str] = "sentences"

    name: str
    classes: tuple[str, ...]
    origin: str
    train: LabelledSentences
    test: LabelledSentences

    def _details(self) -> str:
        return f", {len(self.classes)} classes"

    def _lines(self) -> Iterator[str]:
        yield from self.classes
        for part in (self.train, self.test):
            for sentence, label in zip(*part, strict=True):
                yield f"{label}\t{sentence}"


class Pairs(NamedTuple):
    """N sentences to translate (source), and the translation of each (target)."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number N of pairs."""
        return len(self.source)

    def take(self, chosen: Sequence[bool]) -> Pairs:
        """The pairs that are chosen, of N choices."""
        return Pairs(*(tuple(line for line, take in zip(side, chosen, strict=True) if take) for side in self))


@dataclass(frozen=True)
class ParallelText(TextSets):
    """A training, a validation and a test set of sentence pairs.

    The languages are the short names of the source and the target language, such as ("de", "en").
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


def checked_pairs(origin: str, source: Sequence[str], target: Sequence[str]) -> Pairs:
    """Make pairs of sentences read from files (the origin), without the white space around them."""
    if len(source) != len(target) or not source:
        raise DataFormatError(
            f"{origin} hold {len(source)} and {len(target)} sentences; expected as many translations as sentences, "
            "line by line."
        )
    return Pairs(tuple(line.strip() for line in source), tuple(line.strip() for line in target))
