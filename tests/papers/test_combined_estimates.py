"""Sums of estimates, seed by seed where there are seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normless_papers.claims import Estimate, combined, difference

NUMBERS = st.floats(-1e3, 1e3)


def by_seed(values: list[float]) -> Estimate:
    spread = float(np.std(values, ddof=1))
    return Estimate(float(np.mean(values)), spread, len(values), dict(enumerate(values)))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=6), NUMBERS, NUMBERS)
def test_of_the_same_seeds_the_sum_is_that_of_every_seed(
    pairs: list[tuple[float, float]], first: float, second: float
) -> None:
    sums = [first * left + second * other for left, other in pairs]
    total = combined(
        [(first, by_seed([left for left, _ in pairs])), (second, by_seed([other for _, other in pairs]))]
    )
    assert total.by_seed == pytest.approx(dict(enumerate(sums)))
    assert total.mean == pytest.approx(np.mean(sums), abs=1e-6)
    assert total.deviation == pytest.approx(np.std(sums, ddof=1), abs=1e-3)


def test_what_both_share_cancels_in_a_difference_of_the_same_seeds_alone() -> None:
    left, other = by_seed([90.0, 80.0, 70.0]), by_seed([89.0, 79.0, 69.0])
    assert difference(left, other).deviation == pytest.approx(0, abs=1e-9)
    without = Estimate(other.mean, other.deviation, other.n)
    assert difference(left, without).deviation == pytest.approx(math.hypot(10, 10))
    assert difference(left, without).mean == pytest.approx(1.0)
    assert difference(left, without).by_seed == {}
    assert math.isnan(difference(left, Estimate(math.nan, math.nan)).mean)
