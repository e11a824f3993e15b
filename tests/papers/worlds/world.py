"""What an artefact would measure if its paper were right, and if it were wrong, and pieces that such worlds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from papers_runs import Ends, Optima, evidence_of, measured

from normless_papers.claims import Estimate
from normless_papers.claims.agreement import ROUNDING, Agreement
from normless_papers.published import published_as

# Given True, evidence or facts for the checks as the paper prints them, or as its text says where it prints no
# number; given False, such as contradict the claim of every check.
World = Callable[[bool], Any]


def given(published: Any, opposite: Any) -> World:
    """The world of two facts."""
    return lambda right: published if right else opposite


def trained(artefact: str, published: Optima, opposite: Optima, **changes: Any) -> World:
    """The world of runs with known optima at the paper's budget, some of its settings changed."""
    return lambda right: measured(artefact, published if right else opposite, **changes)


def ended(artefact: str, published: Ends, opposite: Ends, **changes: Any) -> World:
    """The world of runs that end as one function or the other says, at the paper's budget."""
    return lambda right: evidence_of(artefact, published if right else opposite, **changes)


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


def printed(artefact: str) -> dict[str, Any]:
    """The single quantities that an artefact prints, by name."""
    return {row["quantity"]: row["value"] for row in published_as(artefact).rows}


def size_of(labels: Mapping[str, str]) -> int:
    """The batch size of a run."""
    return int(labels["batch_size"])
