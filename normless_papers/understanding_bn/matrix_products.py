"""Bjorck et al., products of random matrices: theorem 1, figure 8, condition numbers (figures 11 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import e
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import nn

from normless_lab.plots import Plot, histogram
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import Test, Tests, decided, equals, exceeds, in_all
from normless_papers.networks.seeded_inputs import seeded
from normless_papers.theory.fuss_catalan import density_table, support_edge
from normless_papers.theory.singular_values import (
    Entries,
    conditioning_table,
    distance_between,
    distance_to_law,
    extremes_table,
    singular_value_table,
)
from normless_papers.understanding_bn.linear_networks import exponent_at_zero

# Tolerance of the shares of N values, as a number of values.
_VALUES_OFF = 5
_LARGE = 1000
_PUBLISHED_SIZE = 1000


def _limiting_law(facts: tuple[int, pd.DataFrame, pd.DataFrame]) -> Tests:
    """Check the shares below any point, the edge, the slope at 0 and the mean of s⁴ against the law.

    The facts are N, the table of `distance_to_law`, and one of `quantity`, `factors`, `value` and `predicted`.
    """
    size, distances, quantities = facts
    bound = _VALUES_OFF / size
    rows = {name: rows.itertuples(index=False, name=None) for name, rows in quantities.groupby("quantity")}
    tests: dict[str, Test] = {
        f"The squared singular values at N = {size} follow ρ: in every product the shares below any point deviate by "
        f"at most {_VALUES_OFF}/N = {bound:g}.": decided(
            (distances["distance"] <= bound).all(),
            largest_distance=distances["distance"].max(),
            bound=bound,
        ),
        "There is no mass above (M+1)^(M+1)/M^M: on average less than one of the N values is larger.": decided(
            distances["beyond_edge"].mean() < 1 / size,
            mean_share=distances["beyond_edge"].mean(),
            bound=1 / size,
        ),
        **{
            f"For large M the edge is (M+1)e, at M = {count} within 0.1 %.": equals(edge, expected, relative=1e-3)
            for _, count, edge, expected in rows["upper_edge_for_large_M"]
        },
    }
    tests |= {
        f"M = {count}: ρ diverges as x^(-M/(M+1)) at 0, the slope of log ρ against log x within 1e-3.": equals(
            slope, expected, absolute=1e-3
        )
        for _, count, slope, expected in rows["behaviour_at_zero"]
    }
    tests |= {
        f"M = {count}: the mean of s⁴ is M + 1 for entries of variance 1/N, within 10/N = {2 * bound:.1%}.": equals(
            moment, expected, relative=2 * bound
        )
        for _, count, moment, expected in rows["mean of s⁴"]
    }
    return tests


@artefact("understanding-bn/theorem-1", basis="measurement", checks=_limiting_law)
def limiting_law(context: Context, *, size: Network[int], factors: Sequence[int], runs: Seeds[int]) -> Evidence:
    values = singular_value_table(factors, size, runs=runs, seed=context.seed)
    moments = values.groupby("factors")["unit_squared"].agg(first="mean", second=lambda x: (x**2).mean())
    largest = values.groupby(["factors", "run"])["unit_squared"].max().groupby("factors").mean()
    rows: list[tuple[str, int, float, float]] = []
    for count in factors:
        rows += [
            ("support", count, float(largest[count]), support_edge(count)),
            ("behaviour_at_zero", count, exponent_at_zero(count), -count / (count + 1)),
            ("mean of s²", count, float(moments["first"][count]), 1.0),
            ("mean of s⁴", count, float(moments["second"][count]), count + 1.0),
            ("distance of a linear network's Jacobian from ρ", count, _of_network(count, size, context.seed), 0.0),
        ]
    rows.append(("upper_edge_for_large_M", _LARGE, support_edge(_LARGE), (_LARGE + 1) * e))
    quantities = pd.DataFrame(rows, columns=["quantity", "factors", "value", "predicted"])
    return _evidence(
        context,
        (size, factors, runs),
        quantities,
        (size, distance_to_law(values), quantities),
        lambda: draw_singular_values(values, density_table(factors), of="squares"),
    )


def _of_network(factors: int, size: int, seed: int) -> float:
    """Return the distance of a linear network's Jacobian from the law, by singular values at initialization."""
    with seeded(seed):
        network = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(factors)))
        for layer in network:
            nn.init.xavier_normal_(layer.get_parameter("weight"))
    jacobian = torch.func.jacrev(network.double())(torch.zeros(size, dtype=torch.float64))
    squares = torch.linalg.svdvals(jacobian.detach()).square().numpy()
    values = pd.DataFrame({"factors": factors, "run": 0, "unit_squared": squares})
    return float(distance_to_law(values)["distance"].max())


def _evidence(
    context: Context,
    dimensions: tuple[int, Sequence[int], int],
    measured: pd.DataFrame,
    facts: Any,
    draw: Callable[[], Axes],
    **setup: Any,
) -> Evidence:
    """Return evidence on products of N × N matrices; `dimensions` are N, the numbers of factors, and of runs."""
    size, factors, runs = dimensions
    shared = {
        "matrices": f"{size}×{size}, independent Gaussian entries of variance 1/N",
        "factors": list(factors),
        "runs": runs,
        "seed": context.seed,
        "data": "generated",
    }
    reduction = "" if size >= _PUBLISHED_SIZE else f"N = {size}; the paper has {_PUBLISHED_SIZE}."
    return Evidence(measured, facts, shared | setup, draw=draw, reduction=reduction)


def _products(products: pd.DataFrame) -> Tests:
    """Check by run and factors the `heaviness` E s⁴/(E s²)², `largest` value, and `distance` from the first run."""
    heaviness, largest = (
        products.pivot(index="run", columns="factors", values=name) for name in ("heaviness", "largest")
    )
    bound = 2 * _VALUES_OFF / products["size"].iloc[0]
    return {
        "The distribution is more heavy-tailed for each larger number of factors, in every run: E s⁴/(E s²)² "
        "rises.": (
            in_all(
                heaviness.diff(axis=1).iloc[:, 1:].min(axis=1) > 0,
                least=heaviness.mean().min(),
                most=heaviness.mean().max(),
            )
        ),
        "The largest singular value grows with each larger number of factors, in every run, also for entries "
        "of variance 1/N.": in_all(
            largest.diff(axis=1).iloc[:, 1:].min(axis=1) > 0,
            first=largest.mean().iloc[0],
            last=largest.mean().iloc[-1],
        ),
        f"Runs nearly coincide: the shares of values below any point differ by at most {bound:g}.": decided(
            products["distance"].max() <= bound, largest_distance=products["distance"].max()
        ),
    }


@artefact("understanding-bn/figure-8", basis="measurement", checks=_products)
def products(context: Context, *, size: Network[int], factors: Sequence[int], runs: Seeds[int]) -> Evidence:
    values = singular_value_table(factors, size, runs=runs, gain="standard", seed=context.seed)
    rows = []
    for (count, run), group in values.groupby(["factors", "run"]):
        squares = group["unit_squared"]
        first = values[(values["factors"] == count) & (values["run"] == 0)]
        apart = distance_between(first, group)["distance"].iloc[0] if run else float("nan")
        heaviness = float((squares**2).mean() / squares.mean() ** 2)
        rows.append((size, count, run, float(apart), heaviness, float(np.sqrt(squares.max()))))
    facts = pd.DataFrame(rows, columns=["size", "factors", "run", "distance", "heaviness", "largest"])
    summary = {
        "runs": ("run", "count"),
        "heaviness": ("heaviness", "mean"),
        "largest_for_variance_1_over_N": ("largest", "mean"),
        "distance_between_runs": ("distance", "max"),
    }
    measured = facts.groupby("factors").agg(**summary).reset_index()
    measured.insert(2, "predicted_heaviness", measured["factors"] + 1.0)
    return _evidence(
        context,
        (size, factors, runs),
        measured,
        facts,
        lambda: draw_singular_values(values, density_table(factors, of="values"), of="values"),
        matrices=f"{size}×{size}, independent standard Gaussian entries",
    )


def draw_singular_values(values: pd.DataFrame, law: pd.DataFrame, ax: Axes | None = None, *, of: str) -> Axes:
    """Draw figure 8: superposed histograms of all runs by the number of factors, with the limiting density."""
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
        f"It rises dramatically: with {last} factors κ is more than a thousand times as large as with {first} "
        "(log₁₀).": exceeds(logarithms[last], logarithms[first], by=3.0),
    }


def _largest_values(extremes: pd.DataFrame) -> Tests:
    values = extremes.pivot(index="run", columns="factors", values="largest")
    slopes = _slopes(values)
    first, last = values.columns[[0, -1]]
    return {
        "The largest value rises with the number of factors, in every run (its slope).": in_all(
            slopes > 0, smallest_slope=slopes.min()
        ),
        f"It rises more slowly than linearly: with {last} factors it is smaller than {first} factors' value times "
        "the ratio of the numbers.": exceeds(values[first] * (float(last) / float(first)), values[last]),
    }


def _slopes(by_run: pd.DataFrame) -> pd.Series[float]:
    """Fit straight lines to each run's numbers (rows) against the number of factors (columns)."""
    factors = by_run.columns.to_numpy(float)
    return by_run.apply(lambda row: float(np.polyfit(factors, row.to_numpy(float), 1)[0]), axis=1)


def _universality(changes: pd.DataFrame) -> Tests:
    """Check the largest `change_of_log10_condition` by gain and the largest `distance` by entries, given `size`."""
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
def universality(context: Context, *, size: Network[int], factors: Sequence[int], runs: Seeds[int]) -> Evidence:
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
    return _evidence(
        context,
        (size, factors, runs),
        measured,
        measured.assign(size=size),
        lambda: CONDITION(pd.concat(tables), by="series", apart=0.15),
        gains=[str(gain) for gain in _GAINS],
        entries=list(_OTHERS),
    )


# Figures 11 and 12 with deviations over runs: the prediction, and the limit of theorem 1.
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


def _by_factors(name: str, checks: Callable[[pd.DataFrame], Tests], columns: Sequence[str], plot: Plot) -> None:
    """Register figure 11 or 12: some columns of `conditioning_table` by the number of factors."""

    @artefact(f"understanding-bn/{name}", basis="measurement", checks=checks)
    def measure(context: Context, *, size: Network[int], factors: Sequence[int], runs: Seeds[int]) -> Evidence:
        extremes = extremes_table(factors, size, runs=runs, seed=context.seed)
        table = conditioning_table(extremes, size)
        shown = table[["factors", "runs", *columns]]
        return _evidence(context, (size, factors, runs), shown, extremes, lambda: plot(table))


_CONDITIONS = ("mean_log10_condition", "std_log10_condition", "predicted_log10_condition", "predicted_log10_growth")
_by_factors("figure-11", _condition_numbers, _CONDITIONS, CONDITION)
_by_factors("figure-12", _largest_values, ("mean_largest", "std_largest", "predicted_largest"), LARGEST)
