"""Singular values of products of random matrices (theorem 1 and figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import e

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots import histogram
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check, close, in_every
from normless_papers.theory.fuss_catalan import density_table, support_edge
from normless_papers.theory.singular_values import distance_between, distance_to_law, singular_value_table
from normless_papers.understanding_bn.densities import exponent_at_zero

# A value is known to about its neighbours' distance: the shares of N values are this many values off at most.
_VALUES_OFF = 5
_LARGE = 1000
_PUBLISHED_SIZE = 1000


@dataclass(frozen=True)
class Law:
    """What was measured of products of matrices, and computed of the law.

    Attributes:
        size: N of the matrices.
        distances: as `distance_to_law` returns it.
        fourth_moments: the mean of s⁴ by the number of factors.
        exponents: the slope of log ρ against log x near 0, by the number of factors.
        edge: of the law for 1000 factors.
    """

    size: int
    distances: pd.DataFrame
    fourth_moments: Mapping[int, float]
    exponents: Mapping[int, float]
    edge: float


def _limiting_law(found: Law) -> list[Check]:
    """The shares below any point, the edge, the slope at 0 and the mean of s⁴ are those of the law."""
    bound = _VALUES_OFF / found.size
    distances = found.distances
    checks = [
        check(
            f"The squared singular values at N = {found.size} follow ρ: the shares below any point are at most "
            f"{_VALUES_OFF}/N = {bound:g} off, in every product.",
            bool((distances["distance"] <= bound).all()),
            largest_distance=distances["distance"].max(),
            bound=bound,
        ),
        check(
            "There is no mass above (M+1)^(M+1)/M^M: on average less than one of the N values lies there.",
            bool(distances["beyond_edge"].mean() < 1 / found.size),
            mean_share=distances["beyond_edge"].mean(),
            bound=1 / found.size,
        ),
        close(
            "For large M the edge is (M+1)e, at M = 1000 within 0.1 %.", found.edge, (_LARGE + 1) * e, relative=1e-3
        ),
    ]
    checks += [
        close(
            f"M = {count}: ρ blows up as x^(-M/(M+1)) at 0, the slope of log ρ against log x within 1e-3.",
            slope,
            -count / (count + 1),
            absolute=1e-3,
        )
        for count, slope in found.exponents.items()
    ]
    checks += [
        close(
            f"M = {count}: the mean of s⁴ is M + 1 for entries of variance 1/N, within 10/N = {2 * bound:.1%}.",
            moment,
            count + 1.0,
            relative=2 * bound,
        )
        for count, moment in found.fourth_moments.items()
    ]
    return checks


@artefact("understanding-bn/theorem-1", basis="measurement", checks=_limiting_law)
def limiting_law(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Theorem 1: the law of the squared singular values of products of Gaussian matrices."""
    values = singular_value_table(factors, size, runs=runs, seed=context.seed)
    moments = values.groupby("factors")["unit_squared"].agg(first="mean", second=lambda x: (x**2).mean())
    largest = values.groupby(["factors", "run"])["unit_squared"].max().groupby("factors").mean()
    found = Law(
        size,
        distance_to_law(values),
        {count: float(moments["second"][count]) for count in factors},
        {count: exponent_at_zero(count) for count in factors},
        support_edge(_LARGE),
    )
    rows: list[dict[str, float | str]] = []
    for count in factors:
        for quantity, value, expected in (
            ("support", float(largest[count]), support_edge(count)),
            ("behaviour_at_zero", found.exponents[count], -count / (count + 1)),
            ("mean of s²", float(moments["first"][count]), 1.0),
            ("mean of s⁴", found.fourth_moments[count], count + 1.0),
        ):
            rows.append({"quantity": quantity, "factors": count, "value": value, "predicted": expected})
    rows.append(
        {"quantity": "upper_edge_for_large_M", "factors": _LARGE, "value": found.edge, "predicted": (_LARGE + 1) * e}
    )
    return Evidence(
        pd.DataFrame(rows),
        found,
        matrix_setup(context, size, factors, runs),
        on=("quantity",),
        draw=lambda: draw_singular_values(values, density_table(factors), of="squares"),
        remarks=(
            "The density is that of squared singular values, as its moments 1 and M + 1 show: the largest singular "
            "value itself grows as the root of what the paper says. `support` is the mean over runs of the largest "
            "s² beside the edge.",
        ),
        reduction=matrix_reduction(size),
    )


def matrix_setup(context: Context, size: int, factors: Sequence[int], runs: int) -> dict[str, object]:
    """How products of random matrices were measured."""
    return {
        "matrices": f"{size}×{size}, independent Gaussian entries of variance 1/N",
        "factors": list(factors),
        "runs": runs,
        "seed": context.seed,
        "data": "generated",
    }


def matrix_reduction(size: int) -> str:
    """Why matrices may be too small for what is true of large ones; empty if they have the paper's size."""
    return "" if size >= _PUBLISHED_SIZE else f"N = {size}; the paper has {_PUBLISHED_SIZE}."


@dataclass(frozen=True)
class Products:
    """The singular values of products, run by run.

    Attributes:
        size: N of the matrices.
        table: `factors`, `run`, `heaviness` E s⁴/(E s²)², `largest` for entries of variance 1/N, and `distance` of
            the shares below any point from those of the first run, NaN for itself.
    """

    size: int
    table: pd.DataFrame


def _products(found: Products) -> list[Check]:
    heaviness, largest = (
        found.table.pivot(index="run", columns="factors", values=name) for name in ("heaviness", "largest")
    )
    bound = 2 * _VALUES_OFF / found.size
    return [
        in_every(
            "The distribution is more heavy-tailed with every further number of factors, in every run: E s⁴/(E s²)² "
            "rises.",
            heaviness.diff(axis=1).iloc[:, 1:].min(axis=1) > 0,
            least=heaviness.mean().min(),
            most=heaviness.mean().max(),
        ),
        in_every(
            "The largest singular value grows with every further number of factors, in every run, also for entries "
            "of variance 1/N.",
            largest.diff(axis=1).iloc[:, 1:].min(axis=1) > 0,
            first=largest.mean().iloc[0],
            last=largest.mean().iloc[-1],
        ),
        check(
            f"Runs nearly coincide: the shares of values below any point differ by at most {bound:g}.",
            bool(found.table["distance"].max() <= bound),
            largest_distance=found.table["distance"].max(),
        ),
    ]


@artefact("understanding-bn/figure-8", basis="measurement", checks=_products)
def products(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 8: with more factors singular values are more heavy-tailed and their maximum grows; runs coincide."""
    values = singular_value_table(factors, size, runs=runs, gain="standard", seed=context.seed)
    rows = []
    for (count, run), group in values.groupby(["factors", "run"]):
        squares = group["unit_squared"]
        first = values[(values["factors"] == count) & (values["run"] == 0)]
        apart = distance_between(first, group)["distance"].iloc[0] if run else float("nan")
        row = {"factors": count, "run": run, "heaviness": float((squares**2).mean() / squares.mean() ** 2)}
        rows.append(row | {"largest": float(np.sqrt(squares.max())), "distance": float(apart)})
    found = Products(size, pd.DataFrame(rows))
    grouped = found.table.groupby("factors")
    measured = grouped.agg(
        runs=("run", "count"),
        heaviness=("heaviness", "mean"),
        largest_for_variance_1_over_N=("largest", "mean"),
        distance_between_runs=("distance", "max"),
    ).reset_index()
    measured.insert(2, "predicted_heaviness", measured["factors"] + 1.0)
    setup = matrix_setup(context, size, factors, runs) | {
        "matrices": f"{size}×{size}, independent standard Gaussian entries"
    }
    return Evidence(
        measured,
        found,
        setup,
        draw=lambda: draw_singular_values(values, density_table(factors, of="values"), of="values"),
        remarks=("The figure is in units of entries of variance 1/N; only the scale of the axis differs.",),
        reduction=matrix_reduction(size),
    )


def draw_singular_values(values: pd.DataFrame, law: pd.DataFrame, ax: Axes | None = None, *, of: str) -> Axes:
    """Figure 8: histograms of all runs over each other by the number of factors, with the limiting density.

    Args:
        values: a row per singular value: ``factors``, ``run``, ``unit_squared`` (for entries of variance 1/N).
        law: of `density_table`.
        ax: where to draw; a new figure without it.
        of: ``"squares"`` or ``"values"``.
    """
    shown = values["unit_squared"] if of == "squares" else np.sqrt(values["unit_squared"])
    return histogram(
        values.assign(shown=shown),
        ax,
        x="shown",
        by="factors",
        each="run",
        law=law[law["of"] == of],
        law_name="limiting density",
        log="y",
        x_limits=(0, 1.02 * float(shown.max())),
        name="factors: {}",
        title="Products of random matrices",
        x_label=f"{'squared ' * (of == 'squares')}singular value (entries of variance 1/N)",
    )
