"""Labelled text: sentences, each with the class it belongs to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class LabelledSentences:
    """Sentences and their classes, in order.

    Attributes:
        sentences: N texts.
        labels: N numbers of classes, from 0.
    """

    sentences: tuple[str, ...]
    labels: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number N of sentences."""
        return len(self.sentences)

    def first(self, size: int) -> LabelledSentences:
        """The first sentences, at most `size` of them."""
        return LabelledSentences(self.sentences[:size], self.labels[:size])


@dataclass(frozen=True)
class LabelledText:
    """A training and a test set of labelled sentences.

    Attributes:
        name: the name `load_labelled_text` knows it by.
        classes: what the classes are called, in the order of their numbers.
        origin: where the text came from, in words.
        train: sentences to learn from.
        test: sentences to report the accuracy on.
    """

    name: str
    classes: tuple[str, ...]
    origin: str
    train: LabelledSentences
    test: LabelledSentences

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: name, origin, sizes, classes and checksum."""
        sizes = f"{self.train.size} train / {self.test.size} test sentences"
        classes = f"{len(self.classes)} classes"
        return f"{self.name}: {self.origin}; {sizes}, {classes}; sha256 {self.checksum[:12]}"

    @cached_property
    def checksum(self) -> str:
        """SHA-256, in hexadecimal, of the classes' names and of all sentences, each behind its label."""
        digest = hashlib.sha256("".join(f"{name}\n" for name in self.classes).encode())
        for part in (self.train, self.test):
            rows = zip(part.labels, part.sentences, strict=True)
            digest.update("".join(f"{label}\t{sentence}\n" for label, sentence in rows).encode())
        return digest.hexdigest()

    def subset(self, *, train: int | None = None, test: int | None = None) -> LabelledText:
        """The same text with the first sentences of each set only; a size left out keeps the whole set.

        Raises:
            ValueError: a size is below 1 or above what there is.
        """
        sizes = {"train": train, "test": test}
        kept = {name: size for name, size in sizes.items() if size is not None}
        for name, size in kept.items():
            whole: int = getattr(self, name).size
            if not 1 <= size <= whole:
                raise ValueError(f"A subset of {self.name} has 1 to {whole} {name} sentences, not {size}.")
        parts = [f"the first {size} of {getattr(self, name).size} {name}" for name, size in kept.items()]
        origin = f"{self.origin}, {' and '.join(parts)}" if parts else self.origin
        return replace(self, origin=origin, **{name: getattr(self, name).first(size) for name, size in kept.items()})
