"""Products of random matrices: the paper's claims about their singular values, measured."""

from __future__ import annotations

from math import e, log10, sqrt

import numpy as np
import pandas as pd
import pytest
import torch

from normless_papers.theory.fuss_catalan import support_edge
from normless_papers.theory.matrix_factors import Entries, random_factors
from normless_papers.theory.singular_values import (
    conditioning_table,
    distance_between,
    distance_to_law,
    extremes_table,
    singular_value_table,
)

SIZE = 300


@pytest.fixture(scope="module")
def values() -> pd.DataFrame:
    return singular_value_table((1, 2, 3), SIZE, runs=5)


@pytest.fixture(scope="module")
def extremes() -> pd.DataFrame:
    return extremes_table(range(1, 11), 200, runs=5)


def test_understanding_bn_theorem_1_at_size_1000() -> None:
    """understanding-bn/theorem-1"""
    draws = random_factors(1000)
    first, second, third = (next(draws) for _ in range(3))
    products = {1: first, 2: second @ first, 3: third @ second @ first}
    squares = {factors: torch.linalg.svdvals(product).square().numpy() for factors, product in products.items()}
    table = pd.concat(pd.DataFrame({"factors": m, "run": 0, "unit_squared": x}) for m, x in squares.items())
    distances = distance_to_law(table)
    assert (distances["distance"] < 0.01).all()
    assert (distances["beyond_edge"] <= 1e-3).all()
    moments = table.groupby("factors")["unit_squared"].agg(
        first="mean", second=lambda x: (x**2).mean(), largest="max"
    )
    assert moments["first"].to_numpy() == pytest.approx([1, 1, 1], rel=0.02)
    assert moments["second"].to_numpy() == pytest.approx([2, 3, 4], rel=0.05)
    assert moments["largest"].to_numpy() == pytest.approx([4, 6.75, 256 / 27], rel=0.06)


def test_understanding_bn_figure_8_heavier_tails_and_coinciding_runs(values: pd.DataFrame) -> None:
    """understanding-bn/figure-8"""
    grouped = values.groupby("factors")["singular_value"]
    assert grouped.max().is_monotonic_increasing
    normalized_fourth = grouped.agg(lambda s: (s**4).mean() / (s**2).mean() ** 2)
    assert normalized_fourth.to_numpy() == pytest.approx([2, 3, 4], rel=0.06)
    for factors in (1, 2, 3):
        runs = [rows for _, rows in values[values["factors"] == factors].groupby("run")]
        for other in runs[1:]:
            assert distance_between(runs[0], other)["distance"].max() < 0.03
    assert distance_to_law(values)["distance"].max() < 0.03


def test_understanding_bn_figure_11_condition_number(extremes: pd.DataFrame) -> None:
    """understanding-bn/figure-11"""
    table = conditioning_table(extremes, 200)
    measured = table["mean_log10_condition"]
    assert measured.is_monotonic_increasing
    slope, offset = np.polyfit(table["factors"], measured, 1)
    straight = slope * table["factors"] + offset
    assert float((measured - straight).abs().max()) < 0.5
    # Between the two limits of the growth per factor: √N at few factors, exp(λ_1 - λ_N) at many.
    assert log10(200) / 2 < slope < 1.1 * float(table["predicted_log10_growth"][0])
    assert float((measured - table["predicted_log10_condition"]).abs().max()) < 1.6
    assert float(measured.iloc[-1]) > 15


def test_understanding_bn_figure_12_largest_singular_value(extremes: pd.DataFrame) -> None:
    """understanding-bn/figure-12"""
    table = conditioning_table(extremes, 200)
    largest = table["mean_largest"]
    assert largest.is_monotonic_increasing
    assert (np.diff(largest) < float(largest[0])).all()
    assert float(largest.iloc[-1] / largest.iloc[0]) < 3
    assert float((largest / table["predicted_largest"] - 1).abs().max()) < 0.1
    assert table["predicted_largest"].to_numpy() == pytest.approx(
        [sqrt(support_edge(factors)) for factors in range(1, 11)]
    )
    # The square of the largest, which the theorem speaks of, does grow by e per factor.
    assert np.polyfit(table["factors"], table["predicted_largest"] ** 2, 1)[0] == pytest.approx(e, rel=0.01)


@pytest.mark.parametrize("gain", ["he", "standard", 0.1])
def test_understanding_bn_scale_and_distribution_do_not_matter_scale(gain: float | str) -> None:
    """understanding-bn/scale-and-distribution-do-not-matter"""
    plain = extremes_table((1, 4, 8), 60, runs=3)
    scaled = extremes_table((1, 4, 8), 60, runs=3, gain=gain)
    np.testing.assert_allclose(scaled["log10_condition"], plain["log10_condition"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("entries", ["uniform", "signs"])
def test_understanding_bn_scale_and_distribution_do_not_matter_entries(
    entries: Entries, values: pd.DataFrame, extremes: pd.DataFrame
) -> None:
    """understanding-bn/scale-and-distribution-do-not-matter"""
    others = singular_value_table((1, 2, 3), SIZE, runs=5, entries=entries)
    assert distance_between(values, others)["distance"].max() < 0.015
    assert distance_to_law(others)["distance"].max() < 0.03
    conditioning = conditioning_table(extremes_table((1, 5, 10), 200, runs=5, entries=entries), 200)
    gaussian = conditioning_table(extremes, 200).set_index("factors").loc[[1, 5, 10]]
    difference = conditioning["mean_log10_condition"].to_numpy() - gaussian["mean_log10_condition"].to_numpy()
    spread = np.hypot(conditioning["std_log10_condition"], gaussian["std_log10_condition"].to_numpy())
    assert (np.abs(difference) < 3 * spread / sqrt(5)).all()


def test_tables_agree_with_each_other_and_with_the_gain() -> None:
    values = singular_value_table((2, 3), 30, runs=2, gain="he")
    extremes = extremes_table((2, 3), 30, runs=2, gain="he")
    grouped = values.groupby(["factors", "run"])["singular_value"]
    np.testing.assert_allclose(extremes["largest"], grouped.max(), rtol=1e-12)
    np.testing.assert_allclose(extremes["log10_condition"], np.log10(grouped.max() / grouped.min()), atol=1e-10)
    np.testing.assert_allclose(values["squared"] / 2.0 ** values["factors"], values["unit_squared"], rtol=1e-12)
    assert values["index"].tolist() == list(range(30)) * 4
    single = conditioning_table(extremes_table((1,), 10, runs=1), 10)
    assert single["std_largest"].isna().all()
    assert single["runs"].tolist() == [1]


def test_counts_below_one_are_refused() -> None:
    for factors, runs in (((), 1), ((0, 1), 1), ((1,), 0)):
        with pytest.raises(ValueError, match="from 1 up"):
            extremes_table(factors, 5, runs=runs)
