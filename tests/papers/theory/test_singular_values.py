"""Products of random matrices: their draws, their singular values, and the paper's claims about them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from normless_papers.theory.matrix_factors import Entries, random_factors
from normless_papers.theory.singular_values import (
    conditioning_table,
    distance_to_law,
    extremes_table,
    singular_value_table,
)


@pytest.mark.parametrize(("entries", "fourth"), [("gaussian", 3), ("uniform", 9 / 5), ("signs", 1)])
def test_entries_have_the_moments_they_are_named_for(entries: Entries, fourth: float) -> None:
    standardized = next(random_factors(400, entries=entries, gain="standard"))
    assert float(standardized.mean()) == pytest.approx(0, abs=0.01)
    assert float(standardized.square().mean()) == pytest.approx(1, abs=0.02)
    assert float(standardized.pow(4).mean()) == pytest.approx(fourth, abs=0.1)


def test_seed_run_and_entries_tell_draws_apart() -> None:
    first = next(random_factors(20, seed=1, run=0))
    assert torch.equal(first, next(random_factors(20, seed=1, run=0)))
    others = ({"seed": 2}, {"seed": 1, "run": 1}, {"seed": 1, "entries": "signs"})
    for other in others:
        both = torch.stack([first.flatten(), next(random_factors(20, **other)).flatten()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.2


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
