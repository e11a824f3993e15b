"""Labelled text: sentences, each with its class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from normless.data.text_sets import TextSets


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
class LabelledText(TextSets):
    """A training and a test set of labelled sentences.

    The checksum is that of the classes' names and of all sentences, each after its label.

    Attributes:
        name: the name it is loaded by.
        classes: names of the classes, in the order of their numbers.
        origin: where the text came from, in words.
        train: sentences to learn from.
        test: sentences to report the accuracy on.
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
            for label, sentence in zip(part.labels, part.sentences, strict=True):
                yield f"{label}\t{sentence}"
