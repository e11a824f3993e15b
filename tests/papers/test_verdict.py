"""Checks of claims: what decides them, against SciPy's test and by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_ind_from_stats, ttest_rel

from normless_papers.claims import Check, Estimate, at_scale, check, close, larger, verdict_of

MEANS = st.floats(-10, 10)
DEVIATIONS = st.floats(1e-3, 5)
COUNTS = st.integers(2, 15)


@given(MEANS, MEANS, DEVIATIONS, DEVIATIONS, COUNTS, COUNTS)
def test_larger_is_decided_where_welchs_test_rejects_equality_at_5_percent(
    a: float, b: float, s: float, t: float, n: int, m: int
) -> None:
    p = float(ttest_ind_from_stats(a, s, n, b, t, m, equal_var=False).pvalue)
    assume(abs(p - 0.05) > 1e-6)
    found = larger("a is larger", Estimate(a, s, n), Estimate(b, t, m)).verdict
    assert found == ("inconclusive" if p > 0.05 else "holds" if a > b else "fails")


@given(st.lists(st.tuples(MEANS, MEANS), min_size=2, max_size=15), st.randoms())
def test_replicates_of_the_same_seeds_are_compared_by_the_paired_test(
    pairs: list[tuple[float, float]], order: random.Random
) -> None:
    first, second = map(np.asarray, zip(*pairs, strict=True))
    assume(np.std(first - second) > 1e-6)
    p = float(ttest_rel(first, second).pvalue)
    assume(abs(p - 0.05) > 1e-6)
    seeds = list(range(len(pairs)))
    order.shuffle(seeds)
    index, other = (
        Estimate(values.mean(), values.std(ddof=1), len(values), {seed: values[seed] for seed in places})
        for values, places in ((first, seeds), (second, range(len(pairs))))
    )
    found = larger("it is larger", index, other)
    assert found.verdict == ("inconclusive" if p > 0.05 else "holds" if first.mean() > second.mean() else "fails")
    assert found.numbers["pairs"] == len(pairs)


def test_the_papers_numbers_are_asked_at_the_papers_scale_alone() -> None:
    fails = check("It reaches 94 %.", False, measured=50)
    assert at_scale(fails, "") == fails
    smaller = at_scale(fails, "3 epochs of digits.")
    assert (smaller.verdict, smaller.numbers) == ("inconclusive", fails.numbers)
    assert smaller.claim == "It reaches 94 %. Not asked of a smaller set-up: 3 epochs of digits."


def test_close_takes_the_wider_tolerance_and_fails_on_what_is_no_number() -> None:
    assert close("it is 10", 10.4, 10, relative=0.05).verdict == "holds"
    assert close("it is 10", 10.6, 10, relative=0.05).verdict == "fails"
    assert close("it is 10", 10.6, 10, relative=0.05, absolute=1).verdict == "holds"
    assert close("it is 10", math.nan, 10, absolute=1).verdict == "fails"
    with pytest.raises(ValueError, match="'it is 10' needs a tolerance above 0"):
        close("it is 10", 10, 10)


def test_one_failing_check_fails_the_claim_and_one_open_check_leaves_it_open() -> None:
    holds, fails, undecided = (check("so it is", answer, number=1) for answer in (True, False, None))
    assert holds == Check("so it is", "holds", {"number": 1.0})
    assert verdict_of([holds, holds]) == "holds"
    assert verdict_of([holds, undecided]) == "inconclusive"
    assert verdict_of([undecided, fails, holds]) == "fails"
    assert verdict_of([]) == "inconclusive"


@pytest.mark.parametrize(
    ("first", "second", "by", "expected"),
    [
        (Estimate(2.0), Estimate(1.0), 0.0, "holds"),
        (Estimate(2.0), Estimate(1.0), 1.5, "fails"),
        (Estimate(1.0), Estimate(1.0), 0.0, "inconclusive"),
        (Estimate(2.0, math.nan), Estimate(1.0), 0.0, "inconclusive"),
        (Estimate(math.nan), Estimate(1.0), 0.0, "inconclusive"),
        (Estimate(3.0, 0.1, 2), Estimate(1.0), 0.0, "holds"),
        # Two replicates: 12.7 standard errors of the one that varies are needed.
        (Estimate(1.5, 0.1, 2), Estimate(1.0), 0.0, "inconclusive"),
    ],
)
def test_exact_and_single_numbers(first: Estimate, second: Estimate, by: float, expected: str) -> None:
    assert larger("it is larger", first, second, by=by).verdict == expected
