"""Singular values of products of random matrices (theorem 1 and figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import e

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import nn

from normless.plots import histogram
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.probes import jacobian_spectrum
from normless_papers.seeded_inputs import seeded
from normless_papers.stated_claims import Test, Tests, decided, equals, in_all
from normless_papers.theory import (
    density_table,
    distance_between,
    distance_to_law,
    singular_value_table,
    support_edge,
)
from normless_papers.understanding_bn.limiting_density import exponent_at_zero

# The tolerance for the shares of N values, in values.
_VALUES_OFF = 5
_LARGE = 1000
_PUBLISHED_SIZE = 1000


@dataclass(frozen=True)
class Law:
    """Numbers of products of N × N matrices and of the law.

    Attributes:
        size: N.
        distances: as `distance_to_law` returns it.
        quantities: `quantity`, `factors`, `value` and `predicted`.
    """

    size: int
    distances: pd.DataFrame
    quantities: pd.DataFrame

    def of(self, quantity: str) -> list[tuple[int, float, float]]:
        """Factors, value and prediction of a quantity, a tuple per row."""
        rows = self.quantities[self.quantities["quantity"] == quantity]
        return list(rows[["factors", "value", "predicted"]].itertuples(index=False, name=None))


def _limiting_law(facts: Law) -> Tests:
    """The shares below any point, the edge, the slope at 0 and the mean of s⁴ are those of the law."""
    bound = _VALUES_OFF / facts.size
    distances = facts.distances
    tests: dict[str, Test] = {
        f"The squared singular values at N = {facts.size} follow ρ: the shares below any point are at most "
        f"{_VALUES_OFF}/N = {bound:g} off, in every product.": decided(
            (distances["distance"] <= bound).all(),
            largest_distance=distances["distance"].max(),
            bound=bound,
        ),
        "There is no mass above (M+1)^(M+1)/M^M: on average less than one of the N values is above it.": decided(
            distances["beyond_edge"].mean() < 1 / facts.size,
            mean_share=distances["beyond_edge"].mean(),
            bound=1 / facts.size,
        ),
        **{
            f"For large M the edge is (M+1)e, at M = {count} within 0.1 %.": equals(edge, expected, relative=1e-3)
            for count, edge, expected in facts.of("upper_edge_for_large_M")
        },
    }
    tests |= {
        f"M = {count}: ρ diverges as x^(-M/(M+1)) at 0, the slope of log ρ against log x within 1e-3.": equals(
            slope, expected, absolute=1e-3
        )
        for count, slope, expected in facts.of("behaviour_at_zero")
    }
    tests |= {
        f"M = {count}: the mean of s⁴ is M + 1 for entries of variance 1/N, within 10/N = {2 * bound:.1%}.": equals(
            moment, expected, relative=2 * bound
        )
        for count, moment, expected in facts.of("mean of s⁴")
    }
    return tests


@artefact("understanding-bn/theorem-1", basis="measurement", checks=_limiting_law)
def limiting_law(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Theorem 1: the law of the squared singular values of products of Gaussian matrices."""
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
    return Evidence(
        quantities,
        Law(size, distance_to_law(values), quantities),
        matrix_setup(context, size, factors, runs),
        on=("quantity",),
        draw=lambda: draw_singular_values(values, density_table(factors), of="squares"),
        remarks=(
            "The density is that of squared singular values, as its moments 1 and M + 1 show: the largest singular "
            "value itself grows as the root of the paper's. `support` is the mean over runs of the largest s². The "
            "network has M linear layers of width N with Xavier's weights: its Jacobian is such a product.",
        ),
        reduction=matrix_reduction(size),
    )


def _of_network(factors: int, size: int, seed: int) -> float:
    """The distance from the law of the singular values of the Jacobian of a linear network at initialization."""
    with seeded(seed):
        network = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(factors)))
        for layer in network:
            nn.init.xavier_normal_(layer.get_parameter("weight"))
    spectrum = jacobian_spectrum(network, torch.zeros(1, size), chunk=size)
    values = spectrum.assign(factors=factors, run=0, unit_squared=spectrum["squared"])
    return float(distance_to_law(values)["distance"].max())


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
    """That matrices are smaller than the paper's; empty if they are not."""
    return "" if size >= _PUBLISHED_SIZE else f"N = {size}; the paper has {_PUBLISHED_SIZE}."


def _products(products: pd.DataFrame) -> Tests:
    """Of `size` N, `factors`, `run`, `heaviness` E s⁴/(E s²)², `largest`, and `distance` from the first run."""
    heaviness, largest = (
        products.pivot(index="run", columns="factors", values=name) for name in ("heaviness", "largest")
    )
    bound = 2 * _VALUES_OFF / products["size"].iloc[0]
    return {
        "The distribution is more heavy-tailed with every further number of factors, in every run: E s⁴/(E s²)² "
        "rises.": in_all(
            heaviness.diff(axis=1).iloc[:, 1:].min(axis=1) > 0,
            least=heaviness.mean().min(),
            most=heaviness.mean().max(),
        ),
        "The largest singular value grows with every further number of factors, in every run, also for entries "
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
def products(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 8: with more factors singular values are more heavy-tailed and their maximum grows; runs coincide."""
    values = singular_value_table(factors, size, runs=runs, gain="standard", seed=context.seed)
    rows = []
    for (count, run), group in values.groupby(["factors", "run"]):
        squares = group["unit_squared"]
        first = values[(values["factors"] == count) & (values["run"] == 0)]
        apart = distance_between(first, group)["distance"].iloc[0] if run else float("nan")
        row = {"size": size, "factors": count, "run": run, "distance": float(apart)}
        row["heaviness"] = float((squares**2).mean() / squares.mean() ** 2)
        rows.append(row | {"largest": float(np.sqrt(squares.max()))})
    facts = pd.DataFrame(rows)
    measured = (
        facts.groupby("factors")
        .agg(
            runs=("run", "count"),
            heaviness=("heaviness", "mean"),
            largest_for_variance_1_over_N=("largest", "mean"),
            distance_between_runs=("distance", "max"),
        )
        .reset_index()
    )
    measured.insert(2, "predicted_heaviness", measured["factors"] + 1.0)
    setup = matrix_setup(context, size, factors, runs) | {
        "matrices": f"{size}×{size}, independent standard Gaussian entries"
    }
    return Evidence(
        measured,
        facts,
        setup,
        draw=lambda: draw_singular_values(values, density_table(factors, of="values"), of="values"),
        remarks=("The figure is in units of entries of variance 1/N; only the scale of the axis differs.",),
        reduction=matrix_reduction(size),
    )


def draw_singular_values(values: pd.DataFrame, law: pd.DataFrame, ax: Axes | None = None, *, of: str) -> Axes:
    """Figure 8: histograms of all runs over each other by the number of factors, with the limiting density."""
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
