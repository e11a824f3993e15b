"""Algorithms, protocols and measurements of SkipInit and ZeroInit as the texts have them, and as the opposite."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi
from typing import Any

import pandas as pd
from papers_runs import Optima, Optimum, measured

from normless_papers.claims import Estimate
from normless_papers.networks.reference_forward import RegularizedFacts
from normless_papers.published import published_as
from normless_papers.zeroinit.initialization import WITH, WITHOUT
from worlds.world import World, agreements, drawn, printed


def trained_or_not(right: bool, name: str, *tables: str) -> Optima:
    """What trains in the tables trains; in the opposite what does not, and nothing else but batch norm."""
    rows = {(row[name], str(row["depth"])): row for table in tables for row in published_as(table).rows}

    def optima(metric: str, labels: Mapping[str, str]) -> Optimum:
        row = rows[labels[name], labels["depth"]]
        trains = row.get("trainable") is not False
        if labels[name] != "batch_norm" and trains != right:
            return Optimum(None)
        if metric != "test_accuracy":
            return Optimum(0.01 if name == "variant" else 0.2)
        # One accuracy is damaged in the text.
        accuracy = row.get(metric) if isinstance(row.get(metric), float) else 91.0
        return Optimum(94.0) if name == "variant" else Optimum(accuracy, deviation=0.1)

    return optima


def skipinit(right: bool) -> Any:
    optima = trained_or_not(right, "variant", "skipinit/table-3")
    facts = measured("skipinit/skipinit", optima, depth=10, width=1).facts
    return (5, 0 if right else 2), agreements(agree=right), facts[2]


def regularized(right: bool, drops: Mapping[str, float]) -> RegularizedFacts:
    shares = {name: drawn(drop if right else 1 - drop) for name, drop in drops.items()}
    return RegularizedFacts(17, 17 if right else 16, agreements(agree=right), shares)


def zeroinit(right: bool) -> Any:
    optima = trained_or_not(right, "method", "zeroinit/table-2", "zeroinit/table-3")
    facts = measured("zeroinit/zeroinit", optima, depth=10, width=1, draws=20).facts
    return regularized(right, printed("zeroinit/zeroinit")), facts[1]


def scalar_bias(right: bool) -> Any:
    rows = published_as("skipinit/table-7").rows
    top1 = {row["method"]: row["top1"] for row in rows if row["batch_size"] == 256}
    if not right:
        biased, plain = "regularized_skipinit_scalar_bias", "regularized_skipinit"
        top1 |= {biased: top1[plain], plain: top1[biased]}
    estimates = {method: Estimate(value, 0.12) for method, value in top1.items()}
    return (16, (1,) * 16 if right else (1,) * 15 + (2,), agreements(agree=right)), 256, estimates


def batch_statistics(right: bool) -> dict[int, tuple[Estimate, ...]]:
    facts: dict[int, tuple[Estimate, ...]] = {}
    for batch in (8, 64, 1000):
        mean_square = 1 / pi + (pi - 1) / (pi * batch)
        both = drawn(mean_square, 0.005), drawn(1 - mean_square, 0.005)
        facts[batch] = (*both, drawn(1.0)) if right else (*both[::-1], drawn(2.0))
    return facts


def linear(right: bool) -> Any:
    """The cosine of outputs of networks of 16 and 1000 layers falls without multipliers; or with them."""
    with_, without = ((0.5, 0.45), (0.4, 0.02)) if right else ((0.5, 0.02), (0.4, 0.38))
    rows = [
        {"scheme": scheme, "depth": depth, "draw": draw, "cosine": value}
        for scheme, means in ((WITH, with_), (WITHOUT, without))
        for depth, mean in zip((16, 1000), means, strict=True)
        for draw, value in drawn(mean).by_seed.items()
    ]
    return agreements(agree=right), pd.DataFrame(rows)


def initial_loss(right: bool) -> Any:
    small: dict[str, Any] = {
        "depths": (16,),
        "images": 2,
        "draws": 2,
        "width": 1,
        "data": "gaussian(image_shape=(3, 8, 8), train=2)",
    }
    optima = trained_or_not(right, "method", "zeroinit/table-2", "zeroinit/table-3")
    facts = measured("zeroinit/l2-dominates-initial-loss", optima, **small).facts
    shares, entropies = ((0.2, 0.6, 0.95), (2.3,) * 3) if right else ((0.4, 0.3, 0.2), (2.3, 23.0, 230.0))
    depths = (16, 100, 1000)
    both = (dict(zip(depths, map(drawn, values), strict=True)) for values in (shares, entropies))
    return (*both, facts[-1])


def wallclock(right: bool) -> Any:
    """Printed as roughly 40 % faster."""
    return drawn(0.6 if right else 1.1), ""


WORLDS: dict[str, World] = {
    "skipinit/skipinit": skipinit,
    "skipinit/scalar-bias-v1": scalar_bias,
    "skipinit/appendix-c-batch-statistics": batch_statistics,
    "zeroinit/zeroinit": zeroinit,
    "zeroinit/linear-at-init": linear,
    "zeroinit/l2-dominates-initial-loss": initial_loss,
    "zeroinit/wallclock": wallclock,
}
