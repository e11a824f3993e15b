"""The limiting law of the singular values of a product of M independent random N × N matrices, N → ∞.

Entries have mean 0 and variance 1/N. The *squared* singular values x have the Fuss–Catalan law: with an angle
0 < φ < π/(M+1)

    x = sin((M+1)φ)^(M+1) / (sin φ · sin(Mφ)^M),    ρ(x) = sin((M+1)φ) · sin φ / (πx · sin(Mφ))

on the support 0 < x < (M+1)^(M+1)/M^M (theorem 1 of "Understanding batch normalization", Bjorck et al. 2018, its
equations 5, 9 and 10). The paper calls ρ the density of singular values, but its moments, 1 and M+1, are those of
their squares; the argument ``of`` chooses between the two. For entries of variance g²/N squared singular values are
g^(2M) times as large. ValueError for fewer than one factor M, or an unknown ``of``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit

Array: TypeAlias = npt.NDArray[np.float64]
Of: TypeAlias = Literal["squares", "values"]
"""Squared singular values x = s², as in theorem 1, or the singular values s themselves."""

# Beyond these logarithmic odds of the angle, x is 0 or the edge in floating point.
_ODDS = 740.0
_BISECTIONS = 64
# Logarithmic odds for tables of curves: angles from 1e-6 of their range.
_SHOWN_ODDS = 14.0


def support_edge(factors: int, of: Of = "squares") -> float:
    """Return the upper end of the support for M = `factors`: (M+1)^(M+1)/M^M for squares, its root for values.

    For large M it grows as e(M + 1/2), the paper's "(M+1)e" to leading order.
    """
    _check(factors, of)
    squared = (factors + 1) * (1 + 1 / factors) ** factors
    return squared if of == "squares" else sqrt(squared)


def density(x: npt.ArrayLike, factors: int, of: Of = "squares") -> Array:
    """Compute the limiting density (equation 10, figure 10): ρ(x) of squares, or 2s·ρ(s²) of singular values s.

    It diverges at 0 as x^(-M/(M+1)), or s^(-(M-1)/(M+1)); for M = 1 the density of values is the quarter circle. It
    is 0 outside the open support, and ∞ if it overflows. ``x`` has any shape.
    """
    points, inside, (phi, rest) = _angles_at(x, factors, of)
    power = 1 if of == "squares" else 2
    with np.errstate(over="ignore"):
        height = power * _sin_over_sin(phi, rest, factors) * np.sin(phi) / (pi * points)
    return np.where(inside, height, 0.0)


def cumulative(x: npt.ArrayLike, factors: int, of: Of = "squares") -> Array:
    """Compute the share of values up to x: F = ((M+1)δ + M sin φ · sin((M+1)φ)/sin(Mφ))/π, δ = π/(M+1) - φ.

    With B = sin((M+1)φ)/sin(Mφ) · e^(iφ) and x = B^(M+1)/(B-1), the density (equation 10) is Im B/(πx), whose
    antiderivative is Im(MB - log(B-1))/π.
    """
    _, inside, angles = _angles_at(x, factors, of)
    return np.where(inside, _share(*angles, factors), np.where(np.asarray(x) > 0, 1.0, 0.0))


def quantile(share: npt.ArrayLike, factors: int, of: Of = "squares") -> Array:
    """Compute the value below which a share of the law lies, the inverse of `cumulative`."""
    _check(factors, of)
    shares = np.asarray(share, dtype=np.float64)
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("Expected shares between 0 and 1.")
    inside = (shares > 0) & (shares < 1)
    known = np.where(inside, shares, 0.5)
    phi, rest = _angles(lambda a, b: np.log(_share(a, b, factors)), np.log(known), factors)
    logarithm = _log_squared(phi, rest, factors) / (1 if of == "squares" else 2)
    return np.where(inside, np.exp(logarithm), np.where(shares > 0, support_edge(factors, of), 0.0))


def density_table(factors: Sequence[int], of: Of = "squares", points: int = 400) -> pd.DataFrame:
    """Tabulate the curves of figures 9 and 10 by number of factors, dense at both ends of the angle, x decreasing.

    Columns: ``factors``, ``of``, ``angle`` (radians), ``x``, ``density`` (per unit of x).
    """
    curves = []
    for count in factors:
        _check(count, of)
        end = pi / (count + 1)
        odds = np.linspace(-_SHOWN_ODDS, _SHOWN_ODDS, points)
        phi, rest = end * expit(odds), end * expit(-odds)
        squares = np.exp(_log_squared(phi, rest, count))
        height = _sin_over_sin(phi, rest, count) * np.sin(phi) / (pi * squares)
        x, height = (squares, height) if of == "squares" else (np.sqrt(squares), 2 * np.sqrt(squares) * height)
        curves.append(pd.DataFrame({"factors": count, "of": of, "angle": phi, "x": x, "density": height}))
    return pd.concat(curves, ignore_index=True)


def _check(factors: int, of: str = "squares") -> None:
    if factors < 1:
        raise ValueError(f"Expected a product of at least one matrix, got {factors}.")
    if of not in get_args(Of):
        raise ValueError(f"of is 'squares' or 'values', got {of!r}.")


def _angles_at(x: npt.ArrayLike, factors: int, of: Of) -> tuple[Array, npt.NDArray[np.bool_], tuple[Array, Array]]:
    """Return the points, those inside the open support (others become 1), and their angles φ and δ."""
    points = np.asarray(x, dtype=np.float64)
    inside = (points > 0) & (points < support_edge(factors, of))
    points = np.where(inside, points, 1.0)
    # In logarithms, since the square of a small singular value may underflow.
    logarithm = np.log(points) * (1 if of == "squares" else 2)
    return points, inside, _angles(lambda phi, rest: _log_squared(phi, rest, factors), logarithm, factors)


def _sin_over_sin(phi: Array, rest: Array, factors: int) -> Array:
    """Compute sin((M+1)φ)/sin(Mφ), from δ = π/(M+1) - φ if φ suffers cancellation: sin((M+1)φ) = sin((M+1)δ)."""
    bottom = np.where(phi < rest, np.sin(factors * phi), np.sin((factors + 1) * rest + phi))
    ratio: Array = _top_sine(phi, rest, factors) / bottom
    return ratio


def _top_sine(phi: Array, rest: Array, factors: int) -> Array:
    return np.where(phi < rest, np.sin((factors + 1) * phi), np.sin((factors + 1) * rest))


def _log_squared(phi: Array, rest: Array, factors: int) -> Array:
    """Compute log x as log(r^M · sin((M+1)φ)/sin φ) with r of `_sin_over_sin`."""
    power = factors * np.log(_sin_over_sin(phi, rest, factors))
    logarithm: Array = power + np.log(_top_sine(phi, rest, factors)) - np.log(np.sin(phi))
    return logarithm


def _share(phi: Array, rest: Array, factors: int) -> Array:
    share: Array = ((factors + 1) * rest + factors * np.sin(phi) * _sin_over_sin(phi, rest, factors)) / pi
    return share


def _angles(function: Callable[[Array, Array], Array], target: Array, factors: int) -> tuple[Array, Array]:
    """Find φ and δ = π/(M+1) - φ at which a function that decreases in φ has the target values.

    Bisection is on v with φ = π/(M+1)/(1+e^v), so φ and δ keep their relative precision at both ends.
    """
    end = pi / (factors + 1)
    low, high = np.full(target.shape, -_ODDS), np.full(target.shape, _ODDS)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = function(end * expit(-middle), end * expit(middle)) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    odds = (low + high) / 2
    return end * expit(-odds), end * expit(odds)
