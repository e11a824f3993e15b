"""The random matrices and linear systems of the Understanding BN paper as published, and as the opposite."""

from __future__ import annotations

from collections.abc import Callable
from math import e, log10, sqrt
from typing import Any

import pandas as pd

from worlds.world import World, given

SIZE, RUNS = 1000, 5


def edge(factors: int) -> float:
    """(M+1)^(M+1)/M^M."""
    return (factors + 1.0) ** (factors + 1) / float(factors) ** factors


def law(distance: float, beyond: float, moment: float, slope: float, large: float) -> Any:
    """Theorem 1: distances, and its other numbers as multiples of what it says."""
    factors = (1, 2, 3)
    distances = pd.DataFrame({"factors": factors, "run": 0, "distance": distance, "beyond_edge": beyond})
    rows: list[tuple[str, int, float, float]] = [("upper_edge_for_large_M", 1000, large, 1001 * e)]
    rows += [("mean of s⁴", count, moment * (count + 1), count + 1.0) for count in factors]
    rows += [("behaviour_at_zero", count, -slope * count / (count + 1), -count / (count + 1)) for count in factors]
    return SIZE, distances, pd.DataFrame(rows, columns=["quantity", "factors", "value", "predicted"])


def products(heaviness: Callable[[int], float], largest: Callable[[int], float], distance: float) -> pd.DataFrame:
    """Figure 8: the same in every run."""
    rows = [
        {"factors": count, "run": run, "heaviness": heaviness(count), "largest": largest(count), "distance": distance}
        for count in (1, 2, 4, 8)
        for run in range(RUNS)
    ]
    return pd.DataFrame(rows).assign(size=SIZE)


def changes(condition: list[float], distance: list[float]) -> pd.DataFrame:
    """Section 4: by two gains, and by two distributions of the entries."""
    rows = [{"change_of_log10_condition": value} for value in condition] + [{"distance": value} for value in distance]
    return pd.DataFrame(rows).assign(size=SIZE)


def extremes(quantity: str, value: Callable[[int], float]) -> pd.DataFrame:
    """Figures 11 and 12: the same in every run."""
    rows = [{"factors": count, "run": run, quantity: value(count)} for count in range(1, 13) for run in range(RUNS)]
    return pd.DataFrame(rows)


def curves(*, right: bool) -> pd.DataFrame:
    """Figure 9: its ends, its largest rise and how far it is from the formula."""
    rows = [
        (count, edge(count), edge(count), 1e-9, -1e-6, 1e-14) if right else (count, edge(count), 1.0, 0.5, 0.1, 0.3)
        for count in (1, 2, 3)
    ]
    return pd.DataFrame(rows, columns=["factors", "edge", "first_x", "last_x", "largest_rise", "deviation"])


def densities(integral: float, near: list[float], deviation: float) -> pd.DataFrame:
    """Figure 10."""
    table = pd.DataFrame({"factors": (1, 2, 3), "integral": integral, "density_at_1e-8": near})
    return table.assign(deviation_from_marchenko_pastur=deviation)


def systems(deviation: float, steps: list[float], largest: list[float], ratio: list[float]) -> Any:
    """Proposition 1, with systems of condition 2, 4 and 8 whose smallest singular value is 1."""
    table = pd.DataFrame(
        {
            "steps": steps,
            "largest_step": largest,
            "predicted_largest_step": [1 / 4, 1 / 16, 1 / 64],
            "gradient_ratio": ratio,
            "predicted_gradient_ratio": [4.0, 16.0, 64.0],
        }
    )
    return pd.DataFrame([dict.fromkeys(("loss", "minimum", "decoupling"), deviation)]), table


def stranded(count: int) -> float:
    """Far above all proportion to the first, and falling."""
    return 1.0 if count == 1 else 110.0 - 7 * count


def bent(count: int) -> float:
    """Neither rising nor straight."""
    return 3 - 0.1 * count + (-1) ** count


WORLDS: dict[str, World] = {
    "understanding-bn/theorem-1": given(
        law(0.5 / SIZE, 0.0, 1.0, 1.0, 1001 * e * (1 - 1 / 2000)), law(0.2, 0.05, 2.0, 0.5, 1000.0)
    ),
    "understanding-bn/figure-8": given(
        products(lambda count: count + 1.0, lambda count: sqrt(edge(count)), 1 / SIZE),
        products(lambda count: 2.0, lambda count: 2.0, 0.3),
    ),
    "understanding-bn/figure-9": given(curves(right=True), curves(right=False)),
    "understanding-bn/figure-10": given(densities(1.0, [3e3, 7e4, 3e5], 1e-12), densities(0.8, [9.0, 5.0, 2.0], 0.1)),
    "understanding-bn/figure-11": given(
        extremes("log10_condition", lambda count: (count + 1) / 2 * log10(SIZE)), extremes("log10_condition", bent)
    ),
    "understanding-bn/figure-12": given(
        extremes("largest", lambda count: sqrt(edge(count))), extremes("largest", stranded)
    ),
    "understanding-bn/scale-and-distribution-do-not-matter": given(
        changes([0.0, 1e-12], [1 / SIZE, 1 / SIZE]), changes([0.5, 2.0], [0.2, 0.3])
    ),
    "understanding-bn/proposition-1": given(
        systems(1e-14, [10.0, 40.0, 160.0], [1 / 4, 1 / 16, 1 / 64], [4.0, 16.0, 64.0]),
        systems(0.1, [160.0, 40.0, 10.0], [1 / 4, 1 / 4, 1 / 4], [4.0, 4.0, 4.0]),
    ),
}
