"""The limiting law of singular values of products, against closed forms, quadrature and combinatorics."""

from __future__ import annotations

from math import comb, e, pi
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

from normless_papers.theory.fuss_catalan import (
    Of,
    cumulative,
    density,
    density_table,
    quantile,
    support_edge,
)
from normless_papers.understanding_bn.linear_networks import exponent_at_zero

FACTORS = st.integers(1, 40)
CONVENTIONS: tuple[Of, Of] = ("squares", "values")


def moment(order: float, factors: int, of: Of = "squares") -> float:
    """E[x^k] = Γ((M+1)k + 1)/(Γ(k+1)·Γ(Mk + 2)), for whole k the Fuss–Catalan numbers."""
    k = order if of == "squares" else order / 2
    return float(np.exp(gammaln((factors + 1) * k + 1) - gammaln(k + 1) - gammaln(factors * k + 2)))


def squared_value_at(angle: Any, factors: int) -> Any:
    """x(φ) as the paper's equation 9 has it."""
    top = np.sin((factors + 1) * angle) ** (factors + 1)
    return top / (np.sin(angle) * np.sin(factors * angle) ** factors)


def integral(factors: int, of: Of, power: float) -> float:
    """∫ x^power ρ(x) dx with x = edge·e^(-u), by Gauss and Legendre in panels that narrow towards the edge."""
    panels = np.concatenate([np.linspace(0, 1, 40) ** 2, np.linspace(1, 650, 300)[1:]])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(panels)[:, None] / 2
    x = support_edge(factors, of) * np.exp(-(panels[:-1, None] + half * (1 + nodes)))
    return float((half * weights * density(x, factors, of) * x ** (1 + power)).sum())


def test_understanding_bn_theorem_1_support_and_tail() -> None:
    """understanding-bn/theorem-1: edges 4, 6.75, 9.48; (M+1)e for large M; ρ ~ x^(-M/(M+1)) at 0."""
    assert [support_edge(factors) for factors in (1, 2, 3)] == pytest.approx([4, 6.75, 256 / 27], rel=1e-15)
    assert support_edge(1000) / (1001 * e) == pytest.approx(1, abs=1e-3)
    assert support_edge(100_000) / (100_001 * e) == pytest.approx(1, abs=1e-5)
    for factors in (1, 2, 3, 10):
        near, nearer = 10.0 ** (-6 * (factors + 1)), 10.0 ** (-7 * (factors + 1))
        slope = np.log(density(near, factors) / density(nearer, factors)) / np.log(near / nearer)
        assert slope == pytest.approx(-factors / (factors + 1), abs=1e-6)
        assert density(support_edge(factors) * (1 + 1e-12), factors) == 0


@pytest.mark.parametrize("factors", [1, 2, 3, 8])
def test_understanding_bn_figure_9_parametrization(factors: int) -> None:
    """understanding-bn/figure-9: x(φ) falls strictly from (M+1)^(M+1)/M^M at φ → 0 to 0 at φ → π/(M+1)."""
    table = density_table((factors,), points=20_001)
    angle, x = table["angle"].to_numpy(), table["x"].to_numpy()
    assert (np.diff(angle) > 0).all()
    assert (np.diff(x) < 0).all()
    assert angle[[0, -1]] == pytest.approx([0, pi / (factors + 1)], abs=1e-5)
    assert x[0] == pytest.approx((factors + 1) ** (factors + 1) / factors**factors, rel=1e-6)
    assert x[-1] < 1e-7
    np.testing.assert_allclose(x[:-1000], squared_value_at(angle, factors)[:-1000], rtol=1e-9)


@pytest.mark.parametrize("of", CONVENTIONS)
@pytest.mark.parametrize("factors", [1, 2, 3, 8])
def test_understanding_bn_figure_10_density(factors: int, of: Of) -> None:
    """understanding-bn/figure-10: the density integrates to 1 and diverges at 0, the more the larger M."""
    assert integral(factors, of, 0) == pytest.approx(1, abs=1e-6)
    assert integral(factors, of, 1) == pytest.approx(moment(1, factors, of), abs=1e-7)
    heights = [float(density(1e-8, count)) for count in (1, 2, 3, 8)]
    assert heights == sorted(heights)
    assert heights[0] > 1e3


def test_one_factor_is_marchenko_and_pastur_and_the_quarter_circle() -> None:
    x = np.linspace(0, 4, 1001)[1:-1]
    np.testing.assert_allclose(density(x, 1), np.sqrt((4 - x) / x) / (2 * pi), rtol=1e-12)
    s = np.linspace(0, 2, 1001)[1:-1]
    np.testing.assert_allclose(density(s, 1, "values"), np.sqrt(4 - s**2) / pi, rtol=1e-12)
    np.testing.assert_allclose(
        cumulative(s, 1, "values"), (s * np.sqrt(4 - s**2) / 2 + 2 * np.arcsin(s / 2)) / pi, rtol=1e-12
    )


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 6))
def test_moments_are_the_fuss_catalan_numbers(factors: int, order: int) -> None:
    exact = comb((factors + 1) * order, order) / (factors * order + 1)
    assert moment(order, factors) == pytest.approx(exact, rel=1e-10)
    assert moment(2 * order, factors, "values") == pytest.approx(exact, rel=1e-10)


@settings(deadline=None)
@given(FACTORS, st.floats(1e-200, 1 - 1e-9), st.sampled_from(CONVENTIONS))
def test_quantile_is_the_inverse_of_the_share(factors: int, share: float, of: Of) -> None:
    x = quantile(share, factors, of)
    if x > 1e-300:
        assert cumulative(x, factors, of) == pytest.approx(share, rel=1e-9)


@settings(deadline=None)
@given(FACTORS, st.floats(0.01, 0.99), st.sampled_from(CONVENTIONS))
def test_the_density_is_the_slope_of_the_share(factors: int, share: float, of: Of) -> None:
    x = float(quantile(share, factors, of))
    step = 1e-4 * min(x, support_edge(factors, of) - x)
    slope = (cumulative(x + step, factors, of) - cumulative(x - step, factors, of)) / (2 * step)
    assert slope == pytest.approx(float(density(x, factors, of)), rel=1e-4)


def test_the_exponent_is_that_of_the_theorem_and_not_of_singular_values() -> None:
    for factors in (1, 2, 5):
        assert exponent_at_zero(factors) == pytest.approx(-factors / (factors + 1), abs=1e-6)
        assert exponent_at_zero(factors) != pytest.approx(-(factors - 1) / (factors + 1), abs=0.1)
