"""Estimates, agreements and checks: verdicts against SciPy's tests and by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from papers_helpers import result_of
from scipy.stats import ttest_1samp, ttest_ind_from_stats, ttest_rel

from normless_papers.claims import (
    BASES,
    Basis,
    Check,
    Estimate,
    at_scale,
    beyond,
    check,
    close,
    conclusion_of,
    equivalent,
    in_every,
    larger,
    obstacle_of,
    over_draws,
    premise,
    replicates,
    within,
)
from normless_papers.claims.agreement import agreement, deviation
from normless_papers.distance import Distance

NUMBERS = st.floats(-1e3, 1e3)
MEANS = st.floats(-10, 10)
DEVIATIONS = st.floats(1e-3, 5)
COUNTS = st.integers(2, 15)
SAMPLES = st.lists(NUMBERS, min_size=2, max_size=20)


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
    test = ttest_rel(first, second)
    assume(abs(test.pvalue - 0.05) > 1e-6)
    seeds = list(range(len(pairs)))
    order.shuffle(seeds)
    shuffled = replicates(pd.Series(first[seeds], index=seeds))
    found = larger("it is larger", shuffled, replicates(pd.Series(second)))
    assert found.verdict == (
        "inconclusive" if test.pvalue > 0.05 else "holds" if first.mean() > second.mean() else "fails"
    )
    low, high = test.confidence_interval()
    assert found.numbers["half_width"] == pytest.approx((high - low) / 2)
    assert found.numbers["pairs"] == len(pairs)


@given(SAMPLES, NUMBERS, st.floats(0, 1e3))
def test_within_is_decided_by_the_interval_of_the_mean(values: list[float], low: float, width: float) -> None:
    assume(np.std(values) > 1e-6)
    estimate, (left, right) = over_draws(values), ttest_1samp(values, 0).confidence_interval()
    assert (estimate.n, estimate.mean) == (len(values), pytest.approx(np.mean(values), abs=1e-6))
    assert estimate.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-3)
    half = (right - left) / 2
    inside = min(estimate.mean - low, low + width - estimate.mean)
    assume(abs(abs(inside) - half) > 1e-6)
    found = within("It is so.", estimate, low, low + width)
    assert found.verdict == ("inconclusive" if abs(inside) < half else "holds" if inside > 0 else "fails")
    assert found.numbers["half_width"] == pytest.approx(half)


ONE, TWO, UNSURE = Estimate(1.0), Estimate(2.0), Estimate(2.0, math.nan)
DECIDED: list[tuple[Check, str]] = [
    (larger("2 > 1", TWO, ONE), "holds"),
    (larger("2 > 1 by 1.5", TWO, ONE, by=1.5), "fails"),
    (larger("a single draw", UNSURE, ONE), "inconclusive"),
    (larger("nothing", Estimate(math.nan), ONE), "inconclusive"),
    # With two replicates 12.7 standard errors are needed.
    (larger("two near draws", Estimate(1.5, 0.1, 2), ONE), "inconclusive"),
    (within("exact", Estimate(1.5), 1.5, 2.5), "holds"),
    (within("nothing", Estimate(math.nan, 0.1, 3), 1.5, 2.5), "inconclusive"),
    # The wider tolerance counts.
    (close("10.6", 10.6, 10, relative=0.05), "fails"),
    (close("10.6 to 1", 10.6, 10, relative=0.05, absolute=1), "holds"),
    (close("nan", math.nan, 10, absolute=1), "fails"),
    (in_every("two of three", [True, True, False]), "inconclusive"),
    (in_every("one of two", [True, False]), "fails"),
]


@pytest.mark.parametrize(("found", "verdict"), DECIDED, ids=lambda one: getattr(one, "claim", one))
def test_exact_and_single_numbers(found: Check, verdict: str) -> None:
    assert found.verdict == verdict


def test_the_papers_numbers_are_asked_at_the_papers_scale_alone() -> None:
    fails = check("It reaches 94 %.", False, measured=50)
    assert at_scale(fails, "") == replace(fails, of="number")
    smaller = at_scale(fails, "3 epochs of digits.")
    assert (smaller.verdict, smaller.numbers) == ("inconclusive", fails.numbers)
    # The shape has its own verdict, whatever becomes of the numbers.
    shape = check("It rises.", True, measured=50)
    assert conclusion_of([shape, smaller], "shape", decisive=True) == "reproduced"
    assert conclusion_of([shape, smaller], "number", decisive=True) == "not seen here"
    # An ordering that was not asked keeps the whole shape from being reproduced, and contradicts nothing.
    ordering = at_scale(fails, "3 epochs of digits.", of="shape")
    assert conclusion_of([shape, ordering], "shape", decisive=True) == "not seen here"


@pytest.mark.parametrize("decisive", [True, False])
@pytest.mark.parametrize("basis", BASES)
@given(answers=st.lists(st.sampled_from([True, False, None]), max_size=4))
def test_a_conclusion_needs_all_checks_and_a_contradiction_a_decisive_set_up(
    answers: list[bool | None], basis: Basis, decisive: bool
) -> None:
    checks = [check("so it is", answer, number=1) for answer in answers]
    expected = None
    if answers:
        held, failed = all(answers), any(answer is False for answer in answers)
        agreed = "implemented" if basis == "formula" else "reproduced"
        expected = agreed if held else "contradicted" if failed and decisive else "not seen here"
    assert conclusion_of(checks, "shape", decisive=decisive, basis=basis) == expected
    assert conclusion_of(checks, "number", decisive=decisive, basis=basis) is None


def test_what_a_text_says_beyond_its_claim_does_not_decide_the_claim() -> None:
    own, further = check("It is so for one.", True, slope=-2), check("It is so for all.", False, slope=-1)
    result = result_of("gamma/figure-6", checks=(own, beyond(further)), basis="measurement", distance=Distance())
    assert (result.verdict, result.beyond) == ("reproduced", "contradicted")
    assert replace(result, checks=(own, further)).verdict == "contradicted"


@pytest.mark.parametrize(
    ("basis", "premises", "of_same_kind", "decisive"),
    [
        ("formula", (), False, True),
        ("measurement", (), False, False),
        ("training", (), True, False),
        ("training", (True,), True, True),
        ("training", (True,), False, False),
        ("training", (True, None), True, False),
    ],
)
def test_only_the_papers_phenomenon_contradicts_the_paper(
    basis: Basis, premises: tuple[bool | None, ...], of_same_kind: bool, decisive: bool
) -> None:
    checks = [premise(check("The control trains.", answer)) for answer in premises]
    assert (not obstacle_of(checks, basis, of_same_kind=of_same_kind)) is decisive


@pytest.mark.parametrize(
    ("gap", "deviation", "verdict"),
    [(0.1, 0.2, "holds"), (0.1, 3.0, "inconclusive"), (2.0, 0.2, "fails"), (0.6, 0.2, "inconclusive")],
)
def test_noise_does_not_make_two_methods_equivalent(gap: float, deviation: float, verdict: str) -> None:
    """Two one-sided tests, by their definition with scipy, of 12 runs of each method and a margin of half a point."""
    first, second = Estimate(90.0 + gap, deviation, 12), Estimate(90.0, deviation, 12)
    found = equivalent("They agree.", first, second, 0.5)
    assert found.verdict == verdict

    def beyond(bound: float) -> float:
        left, right = (90.0 + gap - bound, deviation, 12), (90.0, deviation, 12)
        return float(ttest_ind_from_stats(*left, *right, equal_var=False, alternative="greater").pvalue)

    assert (beyond(-0.5) < 0.025 and 1 - beyond(0.5) < 0.025) == (verdict == "holds")
    assert equivalent("They agree.", second, first, 0.5).verdict == verdict


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5), st.integers(0, 4), st.floats(0.001, 1))
def test_deviation_is_the_largest_relative_to_the_largest(values: list[int], place: int, size: float) -> None:
    expected = torch.tensor(values, dtype=torch.float64)
    measured = expected.clone()
    measured[place % len(values)] += size
    largest = max(abs(value) for value in values) or 1.0
    moved = abs(float(measured[place % len(values)]) - values[place % len(values)])
    found = moved / largest
    assert deviation(measured, expected) == pytest.approx(found)
    assert deviation(expected, expected) == 0
    for tolerance, verdict in ((0.9 * found, "fails"), (1.1 * found, "holds")):
        assert agreement("They are the same", measured, expected, tolerance).check().verdict == verdict
