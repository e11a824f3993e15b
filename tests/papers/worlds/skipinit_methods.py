"""SkipInit's algorithms and measurements at initialization as the text has them, and as the opposite."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi
from pathlib import Path
from typing import Any

import pandas as pd
from invented_runs import Optimum, invented
from worlds.facts import agreements, both, drawn
from worlds.world import World

from normless_papers.claims import Estimate
from normless_papers.networks.regularized import RegularizedFacts
from normless_papers.published import published_as

# What the printed list of blocks adds up to, counted by hand.
PARAMETERS = 25_530_488


def definition(agree: bool) -> Any:
    return agreements(agree=agree), 0.5 if agree else 0.0


def depth_world(right: bool) -> Any:
    """What trains in skipinit/table-3 trains; in the opposite what does not, and nothing else but batch norm."""
    rows = {(row["variant"], str(row["depth"])): row for row in published_as("skipinit/table-3").rows}

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        row = rows[labels["variant"], labels["depth"]]
        trains = row.get("trainable") is not False
        if labels["variant"] == "batch_norm" or trains == right:
            return Optimum(94.0) if metric == "test_accuracy" else Optimum(0.01)
        return Optimum(None)

    return world


def skipinit(folder: Path, right: bool) -> Any:
    facts = invented("skipinit/skipinit", depth_world(right), folder, depth=10, width=1)[0].facts
    return (5, 0 if right else 2), agreements(agree=right), facts[2]


def regularized(right: bool) -> RegularizedFacts:
    printed = {row["quantity"]: row["value"] for row in published_as("skipinit/regularized-skipinit").rows}
    shares = {name: drawn(drop if right else 1 - drop) for name, drop in printed["drop_probability"].items()}
    return RegularizedFacts(17, 17 if right else 16, agreements(agree=right), shares)


def scalar_bias(right: bool) -> Any:
    printed = {
        row["method"]: row["top1"] for row in published_as("skipinit/table-7").rows if row["batch_size"] == 256
    }
    if not right:
        biased, plain = "regularized_skipinit_scalar_bias", "regularized_skipinit"
        printed |= {biased: printed[plain], plain: printed[biased]}
    top1 = {method: Estimate(value, 0.12) for method, value in printed.items()}
    return (16, (1,) * 16 if right else (1,) * 15 + (2,), agreements(agree=right)), 256, top1


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
    # The printed laws, evaluated.
    laws = {row["quantity"]: row["value"] for row in published_as("skipinit/figure-5").rows}
    columns = {
        "skip_variance": "skip_variance",
        "branch_variance": "branch_variance",
        "mean_moving_variance": "norm_variance",
        "mean_squared_moving_mean": "norm_mean_square",
    }
    rows = [
        {
            "block": d,
            **{column: float(eval(laws[name], {"d": d, "pi": pi})) for name, column in columns.items()},
        }
        for d in range(1, 101)
    ]
    table = pd.DataFrame(rows)
    if not right:
        table[list(columns.values())] = 1.5 + table[list(columns.values())] ** 2
    return table, 1000


def moments(level: float, *, right: bool) -> dict[str, Estimate]:
    """δ_il (1 + (π - 1) δ_jm) / π, or a world in which examples have nothing in common and channels do."""
    means = (0.0, level, level / pi, 0.0) if right else (0.5, 2 * level + 0.5, 0.5 - level, 0.5)
    return dict(zip(("mean", "variance", "examples", "channels"), map(drawn, means), strict=True))


def covariance(right: bool) -> Any:
    first = moments(1.0, right=right)
    crossed = dict.fromkeys(first, drawn(0.0 if right else 0.5))
    return {"stream": first, "deepest": first, "branch": first, "crossed": crossed}, 0.01 if right else 0.3


def batch_statistics(right: bool) -> dict[int, tuple[Estimate, ...]]:
    facts = {}
    for batch in (8, 64, 1000):
        mean_square = 1 / pi + (pi - 1) / (pi * batch)
        if right:
            facts[batch] = (drawn(mean_square, 0.005), drawn(1 - mean_square, 0.005), drawn(1.0))
        else:
            facts[batch] = (drawn(1 - mean_square, 0.005), drawn(mean_square, 0.005), drawn(2.0))
    return facts


BUILT = ("parameters", "multipliers", "groups", "sizes", "dropouts", "classes")


def port(right: bool) -> Any:
    printed = {row["quantity"]: row["value"] for row in published_as("skipinit/appendix-g-resnet50-v2").rows}
    groups = tuple(printed["blocks_per_group"])
    if not right:
        sizes = (224, 112, 56, *([56] * 16))
        built = (PARAMETERS + 1, (1.0,) * 15, (4, 4, 4, 4), sizes, (0.8,), 10)
        return dict(zip(BUILT, built, strict=True)), agreements(agree=False)
    sides = [side for count, side in zip(groups, (56, 28, 14, 7), strict=True) for side in [side] * count]
    # The last block of a group has the stride.
    for end, side in ((3, 28), (7, 14), (13, 7)):
        sides[end - 1] = side
    built = (
        PARAMETERS,
        (printed["res_multiplier_init"],) * sum(groups),
        groups,
        (224, 112, 56, *sides),
        (1 - printed["keep_prob"],),
        printed["num_classes"],
    )
    return dict(zip(BUILT, built, strict=True)), agreements(agree=True)


WORLDS = {
    "skipinit/batch-norm-definition": both(definition),
    "skipinit/skipinit": World(lambda folder: skipinit(folder, True), lambda folder: skipinit(folder, False)),
    "skipinit/regularized-skipinit": both(regularized),
    "skipinit/scalar-bias-v1": both(scalar_bias),
    "skipinit/figure-2": both(figure_2),
    "skipinit/figure-5": both(figure_5),
    "skipinit/equation-1": both(lambda right: moments(1.0, right=right)),
    "skipinit/appendix-c-covariance": both(covariance),
    "skipinit/appendix-c-batch-statistics": both(batch_statistics),
    "skipinit/appendix-g-resnet50-v2": both(port),
}
