"""Random choices of the embedded grammars, the same on every machine and in every version of Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

_MOST_REFUSALS = 1000


class SeededChoice:
    """Random choices by ``random()`` alone, whose sequence Python guarantees."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return self._generator.random() < probability

    def one_of(self, items: Sequence[Item]) -> Item:
        """Each item with the same probability."""
        return items[int(self._generator.random() * len(items))]


def distinct(
    draw: Callable[[int], tuple[str, ...]], size: int, taken: set[str], words: set[str] | None = None
) -> list[tuple[str, ...]]:
    """Draw examples, each a tuple of sentences none of which is taken; they are taken afterwards."""
    examples: list[tuple[str, ...]] = []
    refused = 0
    while len(examples) < size:
        example = draw(len(examples))
        known = words is None or all(words.issuperset(sentence.split()) for sentence in example)
        if known and taken.isdisjoint(example):
            examples.append(example)
            taken.update(example)
            refused = 0
        else:
            refused += 1
        if refused > _MOST_REFUSALS:
            raise ValueError(
                "The training examples have too few words to make other sentences of; increase their number by "
                "train=…."
            )
    return examples
