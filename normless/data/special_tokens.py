"""The tokens that are no piece of text."""

from __future__ import annotations

from typing import NamedTuple


class SpecialTokens(NamedTuple):
    """Numbers of the special tokens.

    Attributes:
        padding: fills the shorter sentences of a batch.
        start: precedes a target sentence.
        end: follows every sentence.
        unknown: stands for a byte that no training text has.
    """

    padding: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3


SPECIAL_TOKENS = SpecialTokens()
