"""One of several equal parts of all runs, for machines that share nothing but the table of finished ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Shard:
    """The runs whose hash, as a number, leaves remainder `index` - 1 when divided by `count`.

    Args:
        index: which of the parts, from 1.
        count: number of parts.

    Raises:
        ValueError: there is no such part.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"Expected a shard from 1/n to n/n, as 2/8, got {self.index}/{self.count}.")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The shard of a text such as 2/8.

        Raises:
            ValueError: the text is none.
        """
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal()):
            raise ValueError(f"Expected a shard from 1/n to n/n, as 2/8, got {text!r}.")
        return cls(int(index), int(count))

    def takes(self, config_hash: str) -> bool:
        """Whether the run of this hash (hexadecimal) belongs to the shard."""
        return int(config_hash, 16) % self.count == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
