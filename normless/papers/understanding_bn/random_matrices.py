"""Singular values of products of random matrices (theorem 1 and figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from math import e

import numpy as np
import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.densities import exponent_at_zero
from normless.papers.verdict import Check, check, close
from normless.probes.matrices.fuss_catalan import density_table, support_edge
from normless.probes.matrices.singular_values import distance_between, distance_to_law, singular_value_table
from normless.report.probes.singular_values import singular_value_histogram

# A value is known to about its neighbours' distance: the shares of N values are this many values off at most.
_VALUES_OFF = 5
_LARGE = 1000


@artefact("understanding-bn/theorem-1", basis="measurement")
def limiting_law(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Theorem 1: the law of the squared singular values of products of Gaussian matrices."""
    values = singular_value_table(factors, size, runs=runs, seed=context.seed)
    distances = distance_to_law(values)
    moments = values.groupby("factors")["unit_squared"].agg(first="mean", second=lambda x: (x**2).mean())
    largest = values.groupby(["factors", "run"])["unit_squared"].max().groupby("factors").mean()
    rows: list[dict[str, float | str]] = []
    for count in factors:
        for quantity, value, expected in (
            ("support", float(largest[count]), support_edge(count)),
            ("behaviour_at_zero", exponent_at_zero(count), -count / (count + 1)),
            ("mean of s²", float(moments["first"][count]), 1.0),
            ("mean of s⁴", float(moments["second"][count]), count + 1.0),
        ):
            rows.append({"quantity": quantity, "factors": count, "value": value, "predicted": expected})
    edge = support_edge(_LARGE)
    rows.append(
        {"quantity": "upper_edge_for_large_M", "factors": _LARGE, "value": edge, "predicted": (_LARGE + 1) * e}
    )
    return Evidence(
        pd.DataFrame(rows),
        _law_checks(distances, moments["second"], size, factors),
        matrix_setup(context, size, factors, runs),
        on=("quantity",),
        draw=lambda: singular_value_histogram(values, density_table(factors), of="squares"),
        remarks=(
            "The density is that of squared singular values, as its moments 1 and M + 1 show: the largest singular "
            "value itself grows as the root of what the paper says. `support` is the mean over runs of the largest "
            "s² beside the edge.",
        ),
    )


def _law_checks(
    distances: pd.DataFrame, fourth_moments: pd.Series, size: int, factors: Sequence[int]
) -> tuple[Check, ...]:
    """The shares below any point, the edge, the slope at 0 and the mean of s⁴ are those of the law."""
    edge = support_edge(_LARGE)
    bound = _VALUES_OFF / size
    checks = [
        check(
            f"The squared singular values at N = {size} follow ρ: the shares below any point are at most "
            f"{_VALUES_OFF}/N = {bound:g} off, in every product.",
            bool((distances["distance"] <= bound).all()),
            largest_distance=distances["distance"].max(),
            bound=bound,
        ),
        check(
            "There is no mass above (M+1)^(M+1)/M^M: on average less than one of the N values lies there.",
            bool(distances["beyond_edge"].mean() < 1 / size),
            mean_share=distances["beyond_edge"].mean(),
            bound=1 / size,
        ),
        close("For large M the edge is (M+1)e, at M = 1000 within 0.1 %.", edge, (_LARGE + 1) * e, relative=1e-3),
    ]
    checks += [
        close(
            f"M = {count}: ρ blows up as x^(-M/(M+1)) at 0, the slope of log ρ against log x within 1e-3.",
            exponent_at_zero(count),
            -count / (count + 1),
            absolute=1e-3,
        )
        for count in factors
    ]
    checks += [
        close(
            f"M = {count}: the mean of s⁴ is M + 1 for entries of variance 1/N, within 10/N = {2 * bound:.1%}.",
            float(fourth_moments[count]),
            count + 1.0,
            relative=2 * bound,
        )
        for count in factors
    ]
    return tuple(checks)


def matrix_setup(context: Context, size: int, factors: Sequence[int], runs: int) -> dict[str, object]:
    """How products of random matrices were measured."""
    return {
        "matrices": f"{size}×{size}, independent Gaussian entries of variance 1/N",
        "factors": list(factors),
        "runs": runs,
        "seed": context.seed,
        "data": "generated",
    }


@artefact("understanding-bn/figure-8", basis="measurement")
def products(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 8: with more factors singular values are more heavy-tailed and their maximum grows; runs coincide."""
    values = singular_value_table(factors, size, runs=runs, gain="standard", seed=context.seed)
    unit = values.assign(unit=np.sqrt(values["unit_squared"]))
    rows = []
    for count in factors:
        group = unit[unit["factors"] == count]
        squares = group["unit_squared"]
        first = group[group["run"] == 0]
        others = [group[group["run"] == run] for run in range(1, runs)]
        rows.append(
            {
                "factors": count,
                "runs": runs,
                "heaviness": float((squares**2).mean() / squares.mean() ** 2),
                "predicted_heaviness": count + 1.0,
                "largest": group.groupby("run")["singular_value"].max().mean(),
                "largest_for_variance_1_over_N": group.groupby("run")["unit"].max().mean(),
                "distance_between_runs": max(float(distance_between(first, one)["distance"].max()) for one in others),
            }
        )
    measured = pd.DataFrame(rows)
    bound = 2 * _VALUES_OFF / size
    checks = (
        check(
            "The distribution is more heavy-tailed with every further number of factors: E s⁴/(E s²)² rises.",
            bool(measured["heaviness"].is_monotonic_increasing),
            least=measured["heaviness"].min(),
            most=measured["heaviness"].max(),
        ),
        check(
            "Heaviness is M + 1 within 10 %, as theorem 1 has it.",
            bool((measured["heaviness"] / measured["predicted_heaviness"] - 1).abs().max() <= 0.1),
            largest_deviation=(measured["heaviness"] / measured["predicted_heaviness"] - 1).abs().max(),
        ),
        check(
            "The largest singular value grows with the number of factors, also for entries of variance 1/N.",
            bool(
                measured["largest"].is_monotonic_increasing
                and measured["largest_for_variance_1_over_N"].is_monotonic_increasing
            ),
            first=measured["largest_for_variance_1_over_N"].iloc[0],
            last=measured["largest_for_variance_1_over_N"].iloc[-1],
        ),
        check(
            f"Runs nearly coincide: the shares of values below any point differ by at most {bound:g}.",
            bool(measured["distance_between_runs"].max() <= bound),
            largest_distance=measured["distance_between_runs"].max(),
        ),
    )
    setup = matrix_setup(context, size, factors, runs) | {
        "matrices": f"{size}×{size}, independent standard Gaussian entries"
    }
    return Evidence(
        measured,
        checks,
        setup,
        draw=lambda: singular_value_histogram(values, density_table(factors, of="values")),
        remarks=("The figure is in units of entries of variance 1/N; only the scale of the axis differs.",),
    )
