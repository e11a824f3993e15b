"""Estimates, agreements and checks, of trainings too: verdicts against SciPy's tests and by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, strategies as st
from papers_helpers import assert_whole, checked, result_of
from papers_runs import measured
from scipy.stats import ttest_1samp, ttest_ind_from_stats, ttest_rel
from worlds.de_smith_depth import as_published

from normless_papers.claims import (
    BASES,
    Basis,
    Claim,
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
from normless_papers.claims.training import best_accuracy, opposite, runs_do_not_train, runs_train, trains
from normless_papers.distance import Distance
from normless_papers.experiments.effort import TrainingSweeps
from normless_papers.experiments.protocol import asked_by
from normless_papers.experiments.runs import Runs
from normless_papers.published import published_as
from normless_papers.understanding_bn.rate_search import (
    best_decade,
    best_rate,
    highest_decade,
)

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
DECIDED: list[tuple[Claim, str]] = [
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
def test_exact_and_single_numbers(found: Claim, verdict: str) -> None:
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


CHANCE = 10.0
PERCENT = st.floats(0, 100)
Accuracies = Mapping[float, Sequence[float | None]]


def table(accuracies: Accuracies, outcome: str = "trained") -> pd.DataFrame:
    """A run per rate and seed; None is a run that diverged."""
    return pd.DataFrame(
        {
            "rate": rate,
            "seed": seed,
            "outcome": "diverged" if value is None else outcome,
            "test_accuracy": math.nan if value is None else value,
            "chance_accuracy": CHANCE,
        }
        for rate, values in accuracies.items()
        for seed, value in enumerate(values)
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


def test_a_control_that_learned_little_and_missing_or_failed_runs_decide_nothing() -> None:
    short, untrained = table({0.1: [30.0, 31.0, 29.0]}), table({0.1: [10.0, 10.0, 10.0]})
    assert runs_do_not_train("It does not.", untrained, short).verdict == "inconclusive"
    assert runs_train("It trains.", table({0.1: [90.0, 91.0]}, outcome="failed"), CONTROL).verdict == "inconclusive"
    assert runs_train("It trains.", CONTROL.iloc[:0], CONTROL).verdict == "inconclusive"
    assert runs_do_not_train("It does not.", CONTROL.iloc[:0], CONTROL).verdict == "inconclusive"


def test_the_best_rate_counts_and_divergence_is_chance() -> None:
    found = best_accuracy(table({0.1: [90.0, None, 90.0], 0.2: [80.0, 80.0, 80.0], 0.4: [None, None, None]}))
    assert found == Estimate(80.0, 0.0, 3, {0: 80.0, 1: 80.0, 2: 80.0})
    best_two = best_accuracy(table({0.1: [90.0, None, 92.0], 0.2: [80.0, 80.0, 80.0]}), best=2)
    assert (best_two.mean, best_two.n, best_two.by_seed) == (91.0, 2, {})


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        # Nothing is learned at any rate.
        ({}, "holds"),
        # It trains below the grid, and not at its rates.
        ({-9: 0.9, -8: 0.6, -10: 0.7}, "fails"),
        # It learns a little, and more the lower the rate.
        ({-14: 0.14, -13: 0.13, -12: 0.12}, "inconclusive"),
        # So it does, but best at a rate inside.
        ({-14: 0.11, -13: 0.13, -12: 0.12}, "holds"),
    ],
)
def test_what_does_not_train_was_tried_below_the_grid(reached: Mapping[int, float], verdict: str) -> None:
    """ZeroInit, section 3: "the optimal learning rates are not at the boundary of our grid search"."""
    values: dict[str, dict[int, float | None]] = {
        "none": {**dict.fromkeys(range(-14, 1)), **reached},
        "batch_norm": dict.fromkeys(range(-14, 1), 0.94),
    }
    tables = []
    for method, by_exponent in values.items():
        rates = {
            2.0**power: [None if v is None else 100 * v + 0.1 * seed for seed in range(4)]
            for power, v in by_exponent.items()
        }
        tables.append(table(rates).assign(method=method))
    runs = Runs(pd.concat(tables), pd.DataFrame(), TrainingSweeps((asked_by("skipinit/table-1")[0].sweep,)))
    found = runs.does_not_train("It fails.", against={"method": "batch_norm"}, method="none")
    assert found.verdict == verdict


def test_rates_are_compared_seed_by_seed() -> None:
    # The first seed does not diverge at 0.1 and is best at 0.01, the second diverges beyond 0.01.
    runs = table({0.01: [90.0, 80.0], 0.1: [60.0, None]})
    assert highest_decade(runs).by_seed == pytest.approx({0: -1, 1: -2})
    assert best_decade(runs).by_seed == pytest.approx({0: -2, 1: -2})
    assert best_rate(runs) == 0.01
    nowhere = table({0.01: [10.0], 0.1: [None]}).assign(outcome=["chance", "diverged"])
    assert highest_decade(nowhere).mean == best_decade(nowhere).mean == pytest.approx(math.log10(0.005))
    # Runs that raised cannot tell.
    assert math.isnan(highest_decade(nowhere.assign(outcome="failed")).mean)


@pytest.mark.parametrize("name", ["skipinit/table-4", "skipinit/table-6"])
def test_a_world_as_published_is_tabulated_as_published(name: str) -> None:
    evidence = checked(name, measured(name, as_published(name)))
    merged = assert_whole(name, evidence)
    metric = "test_accuracy" if "test_accuracy_published" in merged else "training_loss"
    known = merged[merged[f"{metric}_published"].notna()]
    assert list(known["lr_log2_measured"]) == list(known["lr_log2_published"])
    gaps = (known[f"{metric}_measured"] - known[f"{metric}_published"]).abs()
    assert (gaps <= known["std_published"].astype(float) + 1e-9).all()
    dashes = [(row["variant"], str(row["depth"])) for row in published_as(name).rows if row.get("trainable") is False]
    not_trained = evidence.measured[~evidence.measured["trainable"].astype(bool)]
    assert {(row["variant"], str(row["depth"])) for row in not_trained.to_dict("records")} == set(dashes)
    assert not_trained["lr_log2"].isna().all()
