"""Singular values of products of random matrices: all of them, and the extremes against the number of factors.

The linear network A_M … A_1 at initialization is such a product; its condition number determines the speed of
gradient descent ("Understanding batch normalization", Bjorck et al. 2018, section 4, figures 8, 11 and 12). Values
come from `GradedProduct`, so that condition numbers beyond 10¹⁵ are those of the product and not of rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log10

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import ks_2samp
from torch import Tensor

from normless_papers.theory.fuss_catalan import cumulative, quantile, support_edge
from normless_papers.theory.graded_product import GradedProduct
from normless_papers.theory.matrix_factors import Entries, condition_growth, gain_of, random_factors


def singular_value_table(
    factors: Sequence[int] = (1, 2, 3),
    size: int = 1000,
    *,
    runs: int = 5,
    entries: Entries = "gaussian",
    gain: float | str = "xavier",
    seed: int = 0,
) -> pd.DataFrame:
    """All singular values of random products, several runs of each number of factors (figure 8).

    Within a run the longer products extend the shorter ones, as a network grows by layers.

    Args:
        factors: the numbers of factors M.
        size: N of the N × N factors.
        runs: independent repetitions.
        entries, gain, seed: as for `random_factors`.

    Returns:
        One row per value, largest first within a product: ``factors``, ``run``, ``index`` (0..N-1),
        ``singular_value`` s, ``squared`` s², and ``unit_squared`` s²/g^(2M), whose limiting law is that of
        `normless_papers.theory.fuss_catalan`.

    Raises:
        ValueError: a count below 1, no such entries or gain, or a product beyond the range of floating point.
    """
    spectra = _spectra(factors, size, runs, entries, gain, seed)
    log_gain = log(gain_of(gain, size))
    tables = []
    for count, run, logarithms in spectra:
        values = logarithms.numpy()
        columns = {
            "factors": count,
            "run": run,
            "index": np.arange(size),
            "singular_value": np.exp(values),
            "squared": np.exp(2 * values),
            "unit_squared": np.exp(2 * (values - count * log_gain)),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def extremes_table(
    factors: Sequence[int] = tuple(range(1, 11)),
    size: int = 1000,
    *,
    runs: int = 5,
    entries: Entries = "gaussian",
    gain: float | str = "xavier",
    seed: int = 0,
) -> pd.DataFrame:
    """Largest and smallest singular value and condition number of every run; arguments as in `singular_value_table`.

    One row per number of factors and run: ``factors``, ``run``, ``largest``, ``log10_largest``, ``log10_smallest``,
    ``log10_condition``. Logarithms, since long products overflow.
    """
    rows = []
    for count, run, logarithms in _spectra(factors, size, runs, entries, gain, seed):
        largest, smallest = float(logarithms[0]) / log(10), float(logarithms[-1]) / log(10)
        row = {"factors": count, "run": run, "largest": 10**largest, "log10_largest": largest}
        rows.append(row | {"log10_smallest": smallest, "log10_condition": largest - smallest})
    return pd.DataFrame(rows)


def conditioning_table(extremes: pd.DataFrame, size: int, gain: float | str = "xavier") -> pd.DataFrame:
    """Mean and deviation over runs of the condition number and the largest value, with predictions (figures 11, 12).

    The condition number is averaged as its logarithm: the mean of the number itself is infinite already for one
    Gaussian matrix (Edelman 1988). Predictions by theorem 1: the largest value g^M·√((M+1)^(M+1)/M^M), approached as
    N grows, on average from below; and the condition number as the ratio of that edge to the quantile 1/(2N), where
    the smallest of N values lies: an order of magnitude, for M small compared to N. Its growth per factor tends to
    `condition_growth`.

    Args:
        extremes: the rows of `extremes_table`, of one size N and gain g (see `random_factors`).
        size: N.
        gain: g.

    Returns:
        One row per number of factors: ``factors``, ``runs``, mean, sample deviation (NaN for a single run) and
        prediction of ``log10_condition`` and ``largest`` (``mean_…``, ``std_…``, ``predicted_…``),
        ``predicted_log10_growth`` (of the condition number, per factor of a long product).
    """
    grouped = extremes.groupby("factors", sort=True)
    table = grouped.agg(
        runs=("run", "count"),
        mean_log10_condition=("log10_condition", "mean"),
        std_log10_condition=("log10_condition", "std"),
        mean_largest=("largest", "mean"),
        std_largest=("largest", "std"),
    ).reset_index()
    scale, counts = gain_of(gain, size), [int(count) for count in table["factors"]]
    edges = [support_edge(count, "values") for count in counts]
    floors = [float(quantile(1 / (2 * size), count, "values")) for count in counts]
    table["predicted_log10_condition"] = [log10(edge / floor) for edge, floor in zip(edges, floors, strict=True)]
    table["predicted_largest"] = [scale**count * edge for count, edge in zip(counts, edges, strict=True)]
    table["predicted_log10_growth"] = condition_growth(size) / log(10)
    return table


def distance_to_law(values: pd.DataFrame) -> pd.DataFrame:
    """The Kolmogorov–Smirnov distance of the singular values of each product from the limiting law.

    Of rows of `singular_value_table` one row per number of factors and run: ``factors``, ``run``, ``distance`` (the
    largest difference of the two shares of values below any point, 0..1), ``beyond_edge`` (the share above the edge).
    """
    rows = []
    for count, run in values[["factors", "run"]].drop_duplicates().itertuples(index=False):
        product = values[(values["factors"] == count) & (values["run"] == run)]
        squares = np.sort(product["unit_squared"].to_numpy(float))
        share, steps = cumulative(squares, int(count)), np.arange(len(squares) + 1) / len(squares)
        distance = max(float((steps[1:] - share).max()), float((share - steps[:-1]).max()))
        beyond = float((squares > support_edge(int(count))).mean())
        rows.append({"factors": int(count), "run": int(run), "distance": distance, "beyond_edge": beyond})
    return pd.DataFrame(rows)


def distance_between(values: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The Kolmogorov–Smirnov distance of two tables of `singular_value_table`, all runs together.

    Both are in units of their gain, so that only the shape matters (universality, section 4). One row per number of
    factors in both: ``factors``, ``distance`` (0..1).
    """
    shared = sorted(set(values["factors"]) & set(others["factors"]))
    rows = []
    for count in shared:
        here, there = (_unit_squares(table, count) for table in (values, others))
        rows.append({"factors": int(count), "distance": float(ks_2samp(here, there, method="asymp").statistic)})
    return pd.DataFrame(rows, columns=["factors", "distance"])


def _unit_squares(values: pd.DataFrame, factors: int) -> npt.NDArray[np.float64]:
    return values.loc[values["factors"] == factors, "unit_squared"].to_numpy(float)


def _spectra(
    factors: Sequence[int], size: int, runs: int, entries: Entries, gain: float | str, seed: int
) -> list[tuple[int, int, Tensor]]:
    """Number of factors, run, logarithms of the singular values."""
    if not factors or min(factors) < 1 or runs < 1:
        raise ValueError(f"Expected numbers of factors and of runs from 1 up, got {list(factors)} and {runs}.")
    counts, spectra = set(factors), []
    for run in range(runs):
        product = GradedProduct(size)
        draws = random_factors(size, entries=entries, gain=gain, seed=seed, run=run)
        while product.factors < max(counts):
            product.multiply(next(draws))
            if product.factors in counts:
                spectra.append((product.factors, run, product.log_singular_values()))
    return sorted(spectra, key=lambda spectrum: spectrum[:2])
