"""What a search found."""

from __future__ import annotations

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A finished target sentence.

    Attributes:
        tokens: without start and end.
        log_probability: Σ log p (nats) of its tokens and of the end, each given those before it and the source.
        score: what the search ranked it by; the log probability, divided by a penalty if it has one.
    """

    tokens: list[int]
    log_probability: float
    score: float
