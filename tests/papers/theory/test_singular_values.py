"""Products of random matrices: their draws, their singular values, and the paper's claims about them."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from normless_papers.theory.matrix_factors import Entries, random_factors
from normless_papers.theory.singular_values import (
    distance_to_law,
)


@pytest.mark.parametrize(("entries", "fourth"), [("gaussian", 3), ("uniform", 9 / 5), ("signs", 1)])
def test_entries_have_the_moments_they_are_named_for(entries: Entries, fourth: float) -> None:
    standardized = next(random_factors(400, entries=entries, gain="standard"))
    assert float(standardized.mean()) == pytest.approx(0, abs=0.01)
    assert float(standardized.square().mean()) == pytest.approx(1, abs=0.02)
    assert float(standardized.pow(4).mean()) == pytest.approx(fourth, abs=0.1)


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
