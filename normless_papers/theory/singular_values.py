"""Singular values of products of random matrices, and their extremes by the number of factors.

The linear network A_M … A_1 at initialization is such a product; its condition number determines the speed of
gradient descent ("Understanding batch normalization", Bjorck et al. 2018, section 4, figures 8, 11 and 12). Values
come from `GradedProduct`, so condition numbers beyond 10¹⁵ are not rounding errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, log10
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ks_1samp, ks_2samp
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
    """Compute all singular values of random products, several runs of each number of factors (figure 8).

    Within a run the longer products extend the shorter ones, as a network grows by layers.

    Args:
        factors: the numbers of factors M, each of shape (N, N) with N the `size`.
        runs: independent repetitions.
        entries, gain, seed: as in `random_factors`.

    Returns:
        One row per value, largest first within a product: ``factors``, ``run``, ``index`` (0..N-1),
        ``singular_value`` s, ``squared`` s², and ``unit_squared`` s²/g^(2M), whose limiting law is that of
        `normless_papers.theory.fuss_catalan`. ValueError for a count below 1.
    """
    spectra = _spectra(factors, size, runs, entries, gain, seed)
    log_gain = log(gain_of(gain, size))
    tables = []
    for count, run, logarithms in spectra:
        values = logarithms.numpy()
        columns = {"factors": count, "run": run, "index": np.arange(size), "singular_value": np.exp(values)}
        columns |= {"squared": np.exp(2 * values), "unit_squared": np.exp(2 * (values - count * log_gain))}
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
    """Compute the extreme singular values and condition number of every run; see `singular_value_table`.

    One row per number of factors and run: ``factors``, ``run``, ``largest``, ``log10_largest``, ``log10_smallest``,
    ``log10_condition``; long products overflow without the logarithms.
    """
    rows = []
    for count, run, logarithms in _spectra(factors, size, runs, entries, gain, seed):
        largest, smallest = float(logarithms[0]) / log(10), float(logarithms[-1]) / log(10)
        row = {"factors": count, "run": run, "largest": 10**largest, "log10_largest": largest}
        rows.append(row | {"log10_smallest": smallest, "log10_condition": largest - smallest})
    return pd.DataFrame(rows)


def conditioning_table(extremes: pd.DataFrame, size: int, gain: float | str = "xavier") -> pd.DataFrame:
    """Average the condition number and the largest value over runs, with predictions (figures 11 and 12).

    The average is of the condition number's logarithm, since its own mean is infinite even for one Gaussian matrix
    (Edelman 1988). Theorem 1 predicts the largest value g^M·√((M+1)^(M+1)/M^M), approached for large N on average
    from below, and the order of magnitude of the condition number, for M small compared to N, as the ratio of that
    edge to the quantile 1/(2N), near the smallest of N values.

    Returns:
        From rows of `extremes_table` of the same size N and gain g, one row per number of factors: ``factors``,
        ``runs``, mean, sample deviation (NaN for a single run) and prediction of ``log10_condition`` and ``largest``
        (``mean_…``, ``std_…``, ``predicted_…``), and ``predicted_log10_growth`` per factor; see `condition_growth`.
    """
    aggregates = {
        f"{kind}_{name}": (name, kind) for name in ("log10_condition", "largest") for kind in ("mean", "std")
    }
    table = extremes.groupby("factors", sort=True).agg(runs=("run", "count"), **aggregates).reset_index()
    scale, counts = gain_of(gain, size), [int(count) for count in table["factors"]]
    edges = {count: support_edge(count, "values") for count in counts}
    floors = {count: float(quantile(1 / (2 * size), count, "values")) for count in counts}
    table["predicted_log10_condition"] = [log10(edges[count] / floors[count]) for count in counts]
    table["predicted_largest"] = [scale**count * edges[count] for count in counts]
    table["predicted_log10_growth"] = condition_growth(size) / log(10)
    return table


def distance_to_law(values: pd.DataFrame) -> pd.DataFrame:
    """Compute the Kolmogorov–Smirnov distance of each product's singular values from the limiting law.

    From rows of `singular_value_table`, one row per number of factors and run: ``factors``, ``run``, ``distance``
    (the largest difference of the shares below any point, 0..1), ``beyond_edge`` (the share above the edge).
    """
    rows = []
    law: Any = cumulative
    products: Any = values.groupby(["factors", "run"], sort=False)["unit_squared"]
    for (count, run), squares in products:
        distance = float(ks_1samp(squares, law, args=(int(count),), method="asymp").statistic)
        beyond = float((squares > support_edge(int(count))).mean())
        rows.append({"factors": int(count), "run": int(run), "distance": distance, "beyond_edge": beyond})
    return pd.DataFrame(rows)


def distance_between(values: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Compute the Kolmogorov–Smirnov distance of two tables of `singular_value_table`, pooling runs.

    Both are in units of their gain, so only the shape matters (universality, section 4). One row per number of
    factors in both: ``factors``, ``distance`` (0..1).
    """
    tables: Any = [dict(list(table.groupby("factors")["unit_squared"])) for table in (values, others)]
    here, there = tables
    rows = [
        (int(count), float(ks_2samp(here[count], there[count], method="asymp").statistic))
        for count in sorted(here.keys() & there.keys())
    ]
    return pd.DataFrame(rows, columns=["factors", "distance"])


def _spectra(
    factors: Sequence[int], size: int, runs: int, entries: Entries, gain: float | str, seed: int
) -> list[tuple[int, int, Tensor]]:
    """Return the number of factors, the run and the logarithms of the singular values of each product."""
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
