"""Pieces that the worlds of several papers are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from worlds.world import World

from normless_papers.claims import Estimate
from normless_papers.claims.agreement import ROUNDING, Agreement


def agreements(*, agree: bool) -> tuple[Agreement, ...]:
    """An exact computation and a rounded one, both as the formula has them, or both far from it."""
    return (
        Agreement("Something counted is the formula's", 0.0 if agree else 1.0),
        Agreement("Something computed is the formula's", ROUNDING / 10 if agree else 0.1, ROUNDING),
    )


def drawn(mean: float, deviation: float = 0.01, n: int = 10) -> Estimate:
    """Draws with this mean and sample deviation."""
    steps = np.linspace(-1, 1, n)
    values = mean + deviation * steps / steps.std(ddof=1)
    return Estimate(mean, deviation, n, dict(enumerate(values.tolist())))


def both(facts: Callable[[bool], Any]) -> World:
    """The worlds of a function that is told whether the paper is right."""
    return World(lambda _: facts(True), lambda _: facts(False))
