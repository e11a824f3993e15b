"""Trained and untrained, against the control of the same artefact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from hypothesis import assume, given
from hypothesis import strategies as st

from normless_papers.claims import Estimate
from normless_papers.claims.training import (
    best_accuracy,
    opposite,
    runs_do_not_train,
    runs_train,
    trains,
)

CHANCE = 10.0
PERCENT = st.floats(0, 100)


def table(accuracies: Mapping[float, Sequence[float | None]], outcome: str = "trained") -> pd.DataFrame:
    """A run per rate and seed; None is a run that diverged."""
    return pd.DataFrame(
        [
            {
                "rate": rate,
                "seed": seed,
                "outcome": "diverged" if value is None else outcome,
                "test_accuracy": math.nan if value is None else value,
                "chance_accuracy": CHANCE,
            }
            for rate, values in accuracies.items()
            for seed, value in enumerate(values)
        ]
    )


CONTROL = table({0.1: [95.0, 96.0, 97.0]})


@given(PERCENT, PERCENT)
def test_half_of_the_controls_gain_decides(accuracy: float, control: float) -> None:
    possible = CHANCE + (100 - CHANCE) / 2
    needed = CHANCE + (control - CHANCE) / 2
    assume(min(abs(accuracy - needed), abs(accuracy - possible), abs(control - possible)) > 1e-6)
    found = trains("It trains.", Estimate(accuracy), Estimate(control), CHANCE)
    if control < possible:
        expected = "holds" if accuracy > possible else "inconclusive"
    else:
        expected = "holds" if accuracy > needed else "fails"
    assert found.verdict == expected
    assert opposite(found).verdict == {"holds": "fails", "fails": "holds"}.get(expected, expected)


def test_a_control_that_learned_little_decides_nothing() -> None:
    short = table({0.1: [30.0, 31.0, 29.0]})
    assert runs_do_not_train("It does not.", table({0.1: [10.0, 10.0, 10.0]}), short).verdict == "inconclusive"


def test_runs_that_failed_with_an_error_and_missing_ones_decide_nothing() -> None:
    assert runs_train("It trains.", table({0.1: [90.0, 91.0]}, outcome="failed"), CONTROL).verdict == "inconclusive"
    assert runs_train("It trains.", CONTROL.iloc[:0], CONTROL).verdict == "inconclusive"
    assert runs_do_not_train("It does not.", CONTROL.iloc[:0], CONTROL).verdict == "inconclusive"


def test_the_best_rate_counts_and_divergence_is_chance() -> None:
    found = best_accuracy(table({0.1: [90.0, None, 90.0], 0.2: [80.0, 80.0, 80.0], 0.4: [None, None, None]}))
    assert found == Estimate(80.0, 0.0, 3, {0: 80.0, 1: 80.0, 2: 80.0})
    best_two = best_accuracy(table({0.1: [90.0, None, 92.0], 0.2: [80.0, 80.0, 80.0]}), best=2)
    assert (best_two.mean, best_two.n, best_two.by_seed) == (91.0, 2, {})
