"""Random choices of the embedded grammars, the same on every machine and in every version of Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

_MOST_REFUSALS = 1000
# Examples of all sets together: a million take a minute to draw.
_MOST_EXAMPLES = 1_000_000


class SeededChoice:
    """Random choices by ``random()`` alone, because Python guarantees its sequence."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return self._generator.random() < probability

    def one_of(self, items: Sequence[Item]) -> Item:
        """Draw an item, each with the same probability."""
        return items[int(self._generator.random() * len(items))]


def distinct_sets(draw: Callable[[int], tuple[str, ...]], sizes: Sequence[int]) -> list[list[tuple[str, ...]]]:
    """Draw sets of distinct examples, tuples of sentences; later sets contain only words of the first set.

    Raises:
        ValueError: the words of the first set do not make enough other sentences, or too many are requested.
    """
    if sum(sizes) > _MOST_EXAMPLES:
        raise ValueError(
            f"The embedded grammar draws at most {_MOST_EXAMPLES:,} examples, but {sum(sizes):,} are asked for; ask "
            "for fewer, or take a data set from files."
        )
    sets: list[list[tuple[str, ...]]] = []
    taken: set[str] = set()
    words: set[str] = set()
    for size in sizes:
        examples: list[tuple[str, ...]] = []
        refused = 0
        while len(examples) < size:
            example = draw(len(examples))
            known = not sets or all(words.issuperset(sentence.split()) for sentence in example)
            if known and taken.isdisjoint(example):
                examples.append(example)
                taken.update(example)
                refused = 0
            elif (refused := refused + 1) > _MOST_REFUSALS:
                raise ValueError(
                    "The training examples have too few words to make other sentences of; increase their number by "
                    "train=…."
                )
        sets.append(examples)
        words = words or {word for example in examples for sentence in example for word in sentence.split()}
    return sets
