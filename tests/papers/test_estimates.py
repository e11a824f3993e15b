"""Estimates over draws, and claims about ranges and about every draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normless_papers.claims import (
    Estimate,
    difference,
    in_every,
    over_draws,
    within,
)

NUMBERS = st.floats(-1e6, 1e6)


@given(st.lists(NUMBERS, min_size=2, max_size=20))
def test_mean_and_deviation_are_those_of_a_sample(values: list[float]) -> None:
    estimate = over_draws(values)
    assert estimate.n == len(values)
    assert estimate.mean == pytest.approx(sum(values) / len(values), abs=1e-6)
    squares = sum((value - estimate.mean) ** 2 for value in values)
    assert estimate.deviation == pytest.approx(math.sqrt(squares / (len(values) - 1)), abs=1e-3)


def test_one_draw_has_no_known_error_and_none_is_no_estimate() -> None:
    assert math.isnan(over_draws([3.0]).deviation)
    with pytest.raises(ValueError, match="at least one draw"):
        over_draws([])
    with pytest.raises(ValueError, match="there is none"):
        in_every("It is so.", [])


@given(NUMBERS, st.floats(0, 10), st.integers(2, 20), NUMBERS, st.floats(0, 1e6))
def test_within_holds_inside_and_fails_outside_and_never_where_the_error_reaches_a_bound(
    mean: float, deviation: float, n: int, low: float, width: float
) -> None:
    found = within("It is so.", Estimate(mean, deviation, n), low, low + width)
    error = 2 * deviation / math.sqrt(n)
    corners = [low <= mean + shift <= low + width for shift in (-error, error)]
    if found.verdict == "holds":
        assert low <= mean <= low + width
        assert all(corners) or error == 0
    if found.verdict == "fails":
        assert not low <= mean <= low + width
        assert not any(corners)


@pytest.mark.parametrize(
    ("mean", "deviation", "n", "verdict"),
    [
        (2.0, 0.0, 1, "holds"),
        (1.5, 0.0, 1, "holds"),
        (2.6, 0.0, 1, "fails"),
        (2.0, 0.2, 4, "holds"),
        (2.17, 0.2, 4, "holds"),  # 3.3 standard errors inside, where Student's t of 3 degrees asks for 3.18
        (2.2, 0.2, 4, "inconclusive"),
        (2.4, 0.2, 4, "inconclusive"),
        (2.6, 0.2, 4, "inconclusive"),
        (3.0, 0.2, 4, "fails"),
        (2.0, math.nan, 1, "inconclusive"),
        (math.nan, 0.1, 3, "inconclusive"),
    ],
)
def test_within_by_hand(mean: float, deviation: float, n: int, verdict: str) -> None:
    assert within("It is so.", Estimate(mean, deviation, n), 1.5, 2.5).verdict == verdict


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        ([True], "holds"),
        ([True, True, False], "inconclusive"),
        ([True, False], "fails"),
        ([False, False, True], "fails"),
        ([False], "fails"),
    ],
)
def test_every_draw(flags: list[bool], verdict: str) -> None:
    found = in_every("It is so.", np.array(flags), worst=1.0)
    assert found.verdict == verdict
    assert found.numbers == {"share_of_draws": sum(flags) / len(flags), "draws": len(flags), "worst": 1.0}


def test_differences_are_paired_by_seed_or_else_add_their_variances() -> None:
    first, second = (
        Estimate(float(np.mean(v)), float(np.std(v, ddof=1)), 3) for v in ((1.0, 2.0, 6.0), (0.0, 2.0, 4.0))
    )
    assert difference(first, second) == Estimate(1.0, math.sqrt(11.0), 3)
    paired = difference(
        Estimate(3.0, math.sqrt(7.0), 3, {0: 1.0, 1: 2.0, 2: 6.0}), Estimate(2.0, 2.0, 3, {2: 4.0, 0: 0.0, 1: 2.0})
    )
    assert paired == Estimate(1.0, 1.0, 3, {0: 1.0, 1: 0.0, 2: 2.0})
    other_seeds = Estimate(2.0, 2.0, 3, {3: 0.0, 4: 2.0, 5: 4.0})
    assert difference(Estimate(3.0, 1.0, 3, {0: 2.0, 1: 3.0, 2: 4.0}), other_seeds).by_seed == {}
