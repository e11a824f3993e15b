"""The limiting law of singular values of products, against closed forms, quadrature and combinatorics."""

from __future__ import annotations

from math import e, pi

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import gammaln

from normless_papers.theory.fuss_catalan import (
    Of,
    cumulative,
    density,
    quantile,
    support_edge,
)

FACTORS = st.integers(1, 40)


CONVENTIONS: tuple[Of, Of] = ("squares", "values")


def moment(order: float, factors: int, of: Of = "squares") -> float:
    """E[x^k] = Γ((M+1)k + 1)/(Γ(k+1)·Γ(Mk + 2)), for whole k the Fuss–Catalan numbers."""
    k = order if of == "squares" else order / 2
    return float(np.exp(gammaln((factors + 1) * k + 1) - gammaln(k + 1) - gammaln(factors * k + 2)))


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
    share = (s * np.sqrt(4 - s**2) / 2 + 2 * np.arcsin(s / 2)) / pi
    np.testing.assert_allclose(cumulative(s, 1, "values"), share, rtol=1e-12)


@settings(deadline=None)
@given(FACTORS, st.one_of(st.floats(1e-200, 1 - 1e-9), st.floats(0.01, 0.99)), st.sampled_from(CONVENTIONS))
def test_quantile_is_the_inverse_of_the_share_and_the_density_its_slope(factors: int, share: float, of: Of) -> None:
    x = float(quantile(share, factors, of))
    if x > 1e-300:
        assert cumulative(x, factors, of) == pytest.approx(share, rel=1e-9)
    if 0.01 < share < 0.99:
        step = 1e-4 * min(x, support_edge(factors, of) - x)
        slope = (cumulative(x + step, factors, of) - cumulative(x - step, factors, of)) / (2 * step)
        assert slope == pytest.approx(float(density(x, factors, of)), rel=1e-4)
