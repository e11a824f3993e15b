"""Condition numbers and largest singular values of products of random matrices (figures 11 and 12, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from normless.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.stated_claims import Tests, decided, exceeds, in_all
from normless_papers.theory import (
    Entries,
    conditioning_table,
    distance_between,
    extremes_table,
    singular_value_table,
)
from normless_papers.understanding_bn.matrix_products import matrix_reduction, matrix_setup

_OTHERS: tuple[Entries, ...] = ("uniform", "signs")
_GAINS: tuple[float | str, ...] = ("he", "standard", 0.1)


def _condition_numbers(extremes: pd.DataFrame) -> Tests:
    logarithms = extremes.pivot(index="run", columns="factors", values="log10_condition")
    factors, means = logarithms.columns.to_numpy(float), logarithms.mean().to_numpy(float)
    slopes = _slopes(logarithms)
    explained = float(np.corrcoef(factors, means)[0, 1] ** 2)
    first, last = logarithms.columns[[0, -1]]
    return {
        "κ rises with the number of factors, in every run (the slope of log₁₀ κ).": in_all(
            slopes > 0, smallest_decades_per_factor=slopes.min()
        ),
        "It rises roughly exponentially: a straight line explains more than 0.9 of the variance of log₁₀ κ, the "
        "mean over runs.": decided(explained > 0.9, explained=explained),
        f"It rises dramatically: with {last} factors κ is more than a thousand times that with {first} "
        "(log₁₀).": exceeds(logarithms[last], logarithms[first], by=3.0),
    }


@artefact("understanding-bn/figure-11", basis="measurement", checks=_condition_numbers)
def condition_numbers(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 11: the condition number of a product grows roughly exponentially with the number of factors."""
    extremes = extremes_table(factors, size, runs=runs, seed=context.seed)
    table = conditioning_table(extremes, size)
    return Evidence(
        table.drop(columns=["mean_largest", "std_largest", "predicted_largest"]),
        extremes,
        matrix_setup(context, size, factors, runs),
        draw=lambda: CONDITION(table),
        remarks=(
            "Singular values are those of the product and not of rounding: the product is kept in graded form. "
            "Predicted is the ratio of the limiting law's edge to its quantile 1/(2N), an order of magnitude.",
        ),
        reduction=matrix_reduction(size),
    )


def _largest_values(extremes: pd.DataFrame) -> Tests:
    values = extremes.pivot(index="run", columns="factors", values="largest")
    slopes = _slopes(values)
    first, last = values.columns[[0, -1]]
    return {
        "It rises with the number of factors, in every run (the slope of the largest value).": in_all(
            slopes > 0, smallest_slope=slopes.min()
        ),
        f"It rises more slowly than linearly: with {last} factors it is smaller than in proportion to their "
        f"number, from that with {first}.": exceeds(values[first] * (float(last) / float(first)), values[last]),
    }


@artefact("understanding-bn/figure-12", basis="measurement", checks=_largest_values)
def largest_values(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 12: the largest singular value of a product grows with the number of factors, slower than linearly."""
    extremes = extremes_table(factors, size, runs=runs, seed=context.seed)
    table = conditioning_table(extremes, size)
    return Evidence(
        table[["factors", "runs", "mean_largest", "std_largest", "predicted_largest"]],
        extremes,
        matrix_setup(context, size, factors, runs),
        draw=lambda: LARGEST(table),
        remarks=(
            "The paper attributes the slower growth to finite size. Predicted is the root of the edge in theorem 1, "
            "√((M+1)^(M+1)/M^M): the theorem is about squared singular values, so growth as √M follows from it, and "
            "finite size only keeps the largest value below.",
        ),
        reduction=matrix_reduction(size),
    )


def _slopes(by_run: pd.DataFrame) -> pd.Series[float]:
    """Of the straight line through each run's numbers (rows) against the number of factors (columns)."""
    factors = by_run.columns.to_numpy(float)
    return by_run.apply(lambda row: float(np.polyfit(factors, row.to_numpy(float), 1)[0]), axis=1)


def _universality(changes: pd.DataFrame) -> Tests:
    """Of `size` N, the largest `change_of_log10_condition` by gain, and the largest `distance` by entries."""
    bound = 5 / changes["size"].iloc[0]
    change, distance = changes["change_of_log10_condition"].max(), changes["distance"].max()
    return {
        "The condition number of every product is unchanged by the gain: log₁₀ κ to 1e-6.": decided(
            change <= 1e-6, largest_change=change
        ),
        f"Uniform entries and signs have the singular values of Gaussian ones: shares below any point, all runs "
        f"together, differ by at most 5/N = {bound:g}.": decided(distance <= bound, largest_distance=distance),
    }


@artefact("understanding-bn/scale-and-distribution-do-not-matter", basis="measurement", checks=_universality)
def universality(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Section 4: condition numbers do not depend on the gain, spectra not on the distribution of the entries."""
    seed = context.seed
    plain = extremes_table(factors, size, runs=runs, seed=seed)
    rows: list[dict[str, Any]] = []
    for gain in _GAINS:
        scaled = extremes_table(factors, size, runs=runs, gain=gain, seed=seed)
        change = float((scaled["log10_condition"] - plain["log10_condition"]).abs().max())
        rows.append({"compared": f"gain {gain}", "change_of_log10_condition": change})
    gaussian = singular_value_table(factors, size, runs=runs, seed=seed)
    tables = [conditioning_table(plain, size).assign(series="gaussian, xavier")]
    for entries in _OTHERS:
        others = singular_value_table(factors, size, runs=runs, entries=entries, seed=seed)
        distance = float(distance_between(gaussian, others)["distance"].max())
        rows.append({"compared": f"{entries} entries", "distance": distance})
        spread = extremes_table(factors, size, runs=runs, entries=entries, seed=seed)
        tables.append(conditioning_table(spread, size).assign(series=entries))
    measured = pd.DataFrame(rows)
    return Evidence(
        measured,
        measured.assign(size=size),
        matrix_setup(context, size, factors, runs)
        | {"gains": [str(gain) for gain in _GAINS], "entries": list(_OTHERS)},
        draw=lambda: CONDITION(pd.concat(tables), by="series", apart=0.15),
        remarks=("Xavier's gain is 1, Kaiming's √2, and `standard` entries have variance 1.",),
        reduction=matrix_reduction(size),
    )


# Figures 11 and 12: with the deviation over runs, on the prediction and on the limit of theorem 1.
CONDITION = Plot(
    "measured_on_predicted",
    x="factors",
    measured="mean_log10_condition",
    predicted="predicted_log10_condition",
    error="std_log10_condition",
    y_ticks="powers of 10",
    title="Ill-conditioned with depth",
    x_label="number of factors; line: predicted",
    y_label="condition number κ",
)

LARGEST = Plot(
    "measured_on_predicted",
    x="factors",
    measured="mean_largest",
    predicted="predicted_largest",
    error="std_largest",
    y_limits=(0, None),
    title="Largest singular value",
    x_label="number of factors; line: the limit",
    y_label="largest singular value",
)
