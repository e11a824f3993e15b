"""Choices of a grammar, the same on every machine and in every version of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Dice:
    """Makes random choices; only ``random()`` is asked, whose numbers Python promises to keep."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def chance(self, probability: float) -> bool:
        """True with a probability."""
        return self._generator.random() < probability

    def one_of(self, items: Sequence[Item]) -> Item:
        """Each item with the same probability."""
        return items[int(self._generator.random() * len(items))]
