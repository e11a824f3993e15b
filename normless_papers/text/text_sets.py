"""Labelled and parallel text: parts of sentences, subsets, a checksum, a line of provenance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

from normless.errors import DataFormatError


class LabelledSentences(NamedTuple):
    """N sentences and the number of the class of each, from 0."""

    sentences: tuple[str, ...]
    labels: tuple[int, ...]


class Pairs(NamedTuple):
    """N sentences to translate (source), and the translation of each (target)."""

    source: tuple[str, ...]
    target: tuple[str, ...]

    @classmethod
    def of_lines(cls, origin: str, source: Sequence[str], target: Sequence[str]) -> Pairs:
        """Make pairs of lines read from files (the origin), without the white space around them."""
        if len(source) != len(target) or not source:
            raise DataFormatError(
                f"{origin} hold {len(source)} and {len(target)} sentences; expected as many translations as "
                "sentences, line by line."
            )
        return cls(tuple(map(str.strip, source)), tuple(map(str.strip, target)))

    def take(self, chosen: Sequence[bool]) -> Pairs:
        """Return the pairs that are chosen, of N choices."""
        return Pairs(*(tuple(line for line, take in zip(side, chosen, strict=True) if take) for side in self))


@dataclass(frozen=True)
class TextSets:
    """A text in parts, each a tuple of columns of N sentences, classes or translations.

    Attributes:
        kind: description of the text.
        parts: names of the fields with sentences.
        unit: unit of their sizes.
        reader: the data set that reads a folder of the user.
        name: the name for loading.
        origin: description of the source.
    """

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    unit: ClassVar[str]
    reader: ClassVar[str]

    name: str
    origin: str

    def title(self) -> str:
        """Return the name, with the languages if there are any."""
        return self.name

    def details(self) -> str:
        """Return what follows the sizes in the provenance."""
        return ""

    def lines(self) -> Iterator[str]:
        """Iterate over all that the checksum depends on."""
        raise NotImplementedError

    def size(self, part: str) -> int:
        """Return the number of sentences, or pairs, of a part."""
        return len(getattr(self, part)[0])

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: name, origin, sizes and checksum."""
        sizes = " / ".join(f"{self.size(part)} {part}" for part in self.parts)
        return f"{self.title()}: {self.origin}; {sizes} {self.unit}{self.details()}; sha256 {self.checksum[:12]}"

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the content in hexadecimal."""
        return hashlib.sha256("".join(f"{line}\n" for line in self.lines()).encode()).hexdigest()

    def subset(self, **sizes: int) -> Self:
        """Return the same text with the first sentences of some parts only.

        Raises:
            ValueError: a size is below 1 or above the number of sentences.
        """
        origins, parts = [], {}
        for name, size in sizes.items():
            whole, part = self.size(name), getattr(self, name)
            if not 1 <= size <= whole:
                raise ValueError(f"A subset of {self.name} has 1 to {whole} {name} {self.unit}, not {size}.")
            origins.append(f"the first {size} of {whole} {name}")
            parts[name] = type(part)(*(column[:size] for column in part))
        return replace(self, origin=f"{self.origin}, {' and '.join(origins)}", **parts)


@dataclass(frozen=True)
class LabelledText(TextSets):
    """A training and a test set of labelled sentences.

    The checksum is that of the names of the `classes`, in the order of their numbers, and of all sentences, each
    after its label.
    """

    kind: ClassVar[str] = "labelled text"
    parts: ClassVar[tuple[str, ...]] = ("train", "test")
    unit: ClassVar[str] = "sentences"
    reader: ClassVar[str] = "labelled_text"

    classes: tuple[str, ...]
    train: LabelledSentences
    test: LabelledSentences

    def details(self) -> str:
        """See `TextSets.details`."""
        return f", {len(self.classes)} classes"

    def lines(self) -> Iterator[str]:
        """See `TextSets.lines`."""
        yield from self.classes
        for part in (self.train, self.test):
            yield from (f"{label}\t{sentence}" for sentence, label in zip(*part, strict=True))


@dataclass(frozen=True)
class ParallelText(TextSets):
    """A training, a validation and a test set of sentence pairs.

    The languages are the short names of the source and the target language, such as ("de", "en").
    """

    kind: ClassVar[str] = "parallel text"
    parts: ClassVar[tuple[str, ...]] = ("train", "validation", "test")
    unit: ClassVar[str] = "pairs"
    reader: ClassVar[str] = "parallel_text"

    languages: tuple[str, str]
    train: Pairs
    validation: Pairs
    test: Pairs

    def title(self) -> str:
        """See `TextSets.title`."""
        return f"{self.name}, {' to '.join(self.languages)}"

    def lines(self) -> Iterator[str]:
        """See `TextSets.lines`."""
        for pairs in (self.train, self.validation, self.test):
            yield from pairs.source
            yield from pairs.target
