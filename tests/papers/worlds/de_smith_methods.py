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

# What the printed list of blocks adds up to, counted by hand.
PARAMETERS = 25_530_488


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


def definition(right: bool) -> Any:
    return agreements(agree=right), 0.5 if right else 0.0


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


def figure_2(right: bool) -> dict[str, list[pd.DataFrame]]:
    block = pd.Series(range(1, 25), name="block")
    rising, flat = block.astype(float), 0.0 * block + 1.0
    if right:
        a = pd.DataFrame({"block": block, "skip_variance": 2.0**block, "branch_variance": 2.0**block})
        b = {"skip_variance": rising, "branch_variance": flat, "norm_variance": rising, "norm_mean_square": 0 * flat}
        c = {"skip_variance": rising, "norm_variance": 0.7 * rising, "norm_mean_square": 0.3 * rising}
    else:
        a = pd.DataFrame({"block": block, "skip_variance": flat, "branch_variance": 1.5**block})
        b = {"skip_variance": flat, "branch_variance": rising, "norm_variance": 2 * flat, "norm_mean_square": flat}
        c = {"skip_variance": 25 - rising, "norm_variance": 25 - 0 * rising, "norm_mean_square": 1 / rising}
    draws = [pd.DataFrame({"block": block, **{name: by * column for name, column in c.items()}}) for by in (0.9, 1.1)]
    return {"a": [a], "b": [pd.DataFrame({"block": block, **b})], "c": draws}


def figure_5(right: bool) -> tuple[pd.DataFrame, int]:
    """The printed laws, evaluated."""
    laws = printed("skipinit/figure-5")
    columns = {
        "skip_variance": "skip_variance",
        "branch_variance": "branch_variance",
        "mean_moving_variance": "norm_variance",
        "mean_squared_moving_mean": "norm_mean_square",
    }
    rows = [
        {"block": d, **{column: float(eval(laws[law], {"d": d, "pi": pi})) for law, column in columns.items()}}
        for d in range(1, 101)
    ]
    table = pd.DataFrame(rows)
    if not right:
        table[list(columns.values())] = 1.5 + table[list(columns.values())] ** 2
    return table, 1000


def moments(right: bool) -> dict[str, Estimate]:
    """δ_il (1 + (π - 1) δ_jm) / π, or a world in which examples have nothing in common and channels do."""
    means = (0.0, 1.0, 1 / pi, 0.0) if right else (0.5, 2.5, -0.5, 0.5)
    return dict(zip(("mean", "variance", "examples", "channels"), map(drawn, means), strict=True))


def covariance(right: bool) -> Any:
    first = moments(right)
    crossed = dict.fromkeys(first, drawn(0.0 if right else 0.5))
    sides = {"stream": first, "deepest": first, "branch": first, "crossed": crossed}
    named = {f"{side} {name}": value for side, own in sides.items() for name, value in own.items()}
    return {**named, "largest_difference": 0.01 if right else 0.3}


def batch_statistics(right: bool) -> dict[int, tuple[Estimate, ...]]:
    facts: dict[int, tuple[Estimate, ...]] = {}
    for batch in (8, 64, 1000):
        mean_square = 1 / pi + (pi - 1) / (pi * batch)
        both = drawn(mean_square, 0.005), drawn(1 - mean_square, 0.005)
        facts[batch] = (*both, drawn(1.0)) if right else (*both[::-1], drawn(2.0))
    return facts


def port(right: bool) -> Any:
    """Parameters, multipliers, groups, sizes, dropouts and classes of appendix G."""
    names = ("parameters", "multipliers", "groups", "sizes", "dropouts", "classes")
    wrong = (PARAMETERS + 1, (1.0,) * 15, (4, 4, 4, 4), (224, 112, 56, *([56] * 16)), (0.8,), 10)
    if not right:
        return dict(zip(names, wrong, strict=True)), agreements(agree=False)
    quantities = printed("skipinit/appendix-g-resnet50-v2")
    groups = tuple(quantities["blocks_per_group"])
    sides = [side for count, side in zip(groups, (56, 28, 14, 7), strict=True) for side in [side] * count]
    # The last block of a group has the stride.
    for end, side in ((3, 28), (7, 14), (13, 7)):
        sides[end - 1] = side
    multipliers = (quantities["res_multiplier_init"],) * sum(groups)
    dropouts, classes = (1 - quantities["keep_prob"],), quantities["num_classes"]
    built = (PARAMETERS, multipliers, groups, (224, 112, 56, *sides), dropouts, classes)
    return dict(zip(names, built, strict=True)), agreements(agree=True)


def protocol(right: bool) -> Any:
    settings = printed("zeroinit/training-protocol")
    multipliers = [1.0] * settings["hold_epochs"]
    while len(multipliers) < settings["epochs"]:
        multipliers += [multipliers[-1] / 2] * settings["halve_every"]
    if right:
        return settings, multipliers, (0.125, 0.25, 0.5), {"tables": 50, "wrong": 0, "moved": 0, "misflagged": 0}
    wrong = {name: 2 * value for name, value in settings.items()}
    errors = {"tables": 50, "wrong": 3, "moved": 4, "misflagged": 5}
    return wrong, (1.0,) * settings["epochs"], (0.1, 0.25, 0.5), errors


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


DROPS = printed("skipinit/regularized-skipinit")["drop_probability"]
WORLDS: dict[str, World] = {
    "skipinit/batch-norm-definition": definition,
    "skipinit/skipinit": skipinit,
    "skipinit/regularized-skipinit": lambda right: regularized(right, DROPS),
    "skipinit/scalar-bias-v1": scalar_bias,
    "skipinit/figure-2": figure_2,
    "skipinit/figure-5": figure_5,
    "skipinit/equation-1": moments,
    "skipinit/appendix-c-covariance": covariance,
    "skipinit/appendix-c-batch-statistics": batch_statistics,
    "skipinit/appendix-g-resnet50-v2": port,
    "zeroinit/zeroinit": zeroinit,
    "zeroinit/training-protocol": protocol,
    "zeroinit/linear-at-init": linear,
    "zeroinit/l2-dominates-initial-loss": initial_loss,
    "zeroinit/wallclock": wallclock,
}
