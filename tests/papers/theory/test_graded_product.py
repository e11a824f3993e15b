"""Random factors, and singular values of long products, against 400-digit arithmetic and exact products."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from normless_papers.theory.singular_values import (
    Entries,
    GradedProduct,
    condition_growth,
    lyapunov_exponents,
    random_factors,
)


def drawn(size: int, count: int, seed: int = 0) -> list[Tensor]:
    draws = random_factors(size, seed=seed)
    return [next(draws) for _ in range(count)]


def log_singular_values(factors: list[Tensor]) -> Tensor:
    product = GradedProduct(len(factors[0]))
    for factor in factors:
        product.multiply(factor)
    return product.log_singular_values()


def precise(factors: list[Tensor]) -> Tensor:
    """Logarithms of the singular values of X_M … X_1, in arithmetic of 400 digits."""
    with mpmath.workdps(400):
        product = mpmath.eye(len(factors[0]))
        for factor in factors:
            product = mpmath.matrix(factor.tolist()) * product
        values = mpmath.svd_r(product, compute_uv=False)
        return torch.tensor([float(mpmath.log(value)) for value in values], dtype=torch.float64)


@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 200), (8, 1), (8, 60), (20, 25)])
def test_every_singular_value_of_a_long_product_is_right(size: int, count: int) -> None:
    factors = drawn(size, count)
    exact = precise(factors)
    torch.testing.assert_close(log_singular_values(factors), exact, rtol=0, atol=1e-11)


def test_long_products_grow_by_the_lyapunov_exponents() -> None:
    """Newman 1986; the spread of λ_i over M factors is about 1/√M."""
    size, count = 6, 200
    growth = torch.stack([log_singular_values(drawn(size, count, seed)) / count for seed in range(10)])
    torch.testing.assert_close(growth.mean(0), lyapunov_exponents(size), rtol=0, atol=0.05)
    assert condition_growth(size) == pytest.approx(float((growth[:, 0] - growth[:, -1]).mean()), rel=0.05)


@pytest.mark.parametrize(("entries", "fourth"), [("gaussian", 3), ("uniform", 9 / 5), ("signs", 1)])
def test_entries_have_the_moments_they_are_named_for(entries: Entries, fourth: float) -> None:
    standardized = next(random_factors(400, entries=entries, gain="standard"))
    assert float(standardized.mean()) == pytest.approx(0, abs=0.01)
    assert float(standardized.square().mean()) == pytest.approx(1, abs=0.02)
    assert float(standardized.pow(4).mean()) == pytest.approx(fourth, abs=0.1)
