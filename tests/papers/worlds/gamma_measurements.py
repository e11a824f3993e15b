"""The γ paper's analysis, its groups and its measurements as the text has them, and as the opposite."""

from __future__ import annotations

from typing import Any

import pandas as pd
from worlds.facts import both, drawn

from normless_papers.claims import Estimate
from normless_papers.gamma.parameter_groups import APPLIED, PRINTED
from normless_papers.published import published_as


def partition(right: bool) -> dict[str, float]:
    names = ("networks", "gammas", "ungrouped", "repeated", "elsewhere", "inside", "outside")
    return dict(zip(names, (8, 500, 0, 0, 0, 0.0, 0.0) if right else (8, 500, 3, 2, 5, 0.01, 0.01), strict=True))


def table_1(right: bool) -> pd.DataFrame:
    """Applied where the table says so, and to b and β in PyTorch alone; or the other way round."""
    rows = [
        {
            "parameter": row["parameter"],
            **{name: APPLIED[PRINTED[row[name]] == right] for name in ("tensorflow", "pytorch", "guidelines")},
        }
        for row in published_as("gamma/table-1").rows
    ]
    others = {"tensorflow": APPLIED[not right], "pytorch": APPLIED[right], "guidelines": APPLIED[not right]}
    return pd.DataFrame([*rows, {"parameter": "b, beta", **others}])


def accumulation(right: bool) -> dict[str, Any]:
    ratio, change = (drawn(1.0), 0.0) if right else (drawn(2.0), 3.0)
    small, large = ((0.3, 0.2), (9.0, 8.0)) if right else ((2.0, 3.0), (0.5, 0.4))
    return {"branch": ratio, "stream": ratio, "change": change, "small": small, "large": large}


def half(right: bool) -> dict[str, Estimate]:
    """Half is left after a block, a quarter after two; or all of it."""
    names = ("step", "recursion", "left_after_two")
    ratios = (1.0, 1.0, 0.25) if right else (2.0, 3.0, 1.0)
    return {"branch": Estimate(0.0 if right else 0.5)} | dict(zip(names, map(drawn, ratios), strict=True))


def reset(right: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"ratio": drawn(1.0 if right else 7.0)}
    return facts | ({"change": 0.0, "sides": 0.0} if right else {"change": 48.0, "sides": 0.5})


def invariance(right: bool) -> dict[str, float]:
    return {"norms": 8, "output_change": 0.0 if right else 0.5, "gradient_deviation": 0.0 if right else 1.0}


def effective_rate(right: bool) -> dict[str, float]:
    return {"norms": 8, "ratio_deviation": 0.001 if right else 3.0, "slope": -2.0 if right else 0.0}


def figure_6(right: bool) -> dict[str, Estimate]:
    return {role: drawn(-2.0 if right else 0.0) for role in ("other", "last", "down", "stem", "all at once")}


def figure_5(right: bool) -> tuple[list[pd.DataFrame], float, float]:
    """Set at the start of each stage and falling in it; or the other way round."""
    rows = [
        {"block": f"{stage}-{index}", "stage": stage, "index": index, "variance": stage + 1 / (1 + index)}
        for stage, count in enumerate((3, 4, 6, 3), 1)
        for index in range(count)
    ]
    table = pd.DataFrame(rows)
    return [table if right else table.assign(variance=-table["variance"])], 1.0, 0.1


WORLDS = {
    "gamma/parameter-groups": both(partition),
    "gamma/table-1": both(table_1),
    "gamma/equation-6": both(accumulation),
    "gamma/equation-11": both(half),
    "gamma/equation-15": both(reset),
    "gamma/equation-17": both(reset),
    "gamma/equation-19": both(reset),
    "gamma/equation-22": both(invariance),
    "gamma/equation-24": both(effective_rate),
    "gamma/figure-6": both(figure_6),
    "gamma/figure-5": both(figure_5),
}
