"""The γ paper's analysis, groups, measurements and trainings as the text has them, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
from papers_runs import Optimum, by_optima, made_up

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import artefact_of
from normless_papers.claims import Estimate
from normless_papers.gamma.decay_comparison import BASELINE
from normless_papers.gamma.image_guidelines import compared_by_role
from normless_papers.gamma.parameter_groups import APPLIED, PRINTED
from normless_papers.published import published_as
from worlds.world import World, drawn

# Differences to L2 on the weights alone, where the paper prints one number for no network, or none but a direction.
GAINS = {
    "gamma/figure-3": {"gamma_down": -1.7767},
    "gamma/guideline-3t": {"gamma_0": -0.2064},
    "gamma/guideline-4t": {"gamma_other": 0.2},
}
IMAGES = tuple(
    f"gamma/{name}" for name in ("guideline-1", "guideline-2", "guideline-3", "guideline-4", "table-2", "figure-3")
)
TEXTS = tuple(f"gamma/{name}" for name in ("guideline-1t", "guideline-3t", "guideline-4t", "table-3", "table-4"))


def table_1(right: bool) -> pd.DataFrame:
    """Applied where the table says so, and to b and β in PyTorch alone; or the other way round."""
    columns = ("tensorflow", "pytorch", "guidelines")
    rows = [
        {"parameter": row["parameter"]} | {name: APPLIED[PRINTED[row[name]] == right] for name in columns}
        for row in published_as("gamma/table-1").rows
    ]
    others = {"tensorflow": APPLIED[not right], "pytorch": APPLIED[right], "guidelines": APPLIED[not right]}
    return pd.DataFrame([*rows, {"parameter": "b, beta", **others}])


def half(right: bool) -> dict[str, Any]:
    """Half is left after a block, a quarter after two; or all of it."""
    names = ("step", "recursion", "left_after_two")
    ratios = (1.0, 1.0, 0.25) if right else (2.0, 3.0, 1.0)
    return {"branch": 0.0 if right else 0.5} | dict(zip(names, map(drawn, ratios), strict=True))


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


def printed_gain(artefact: str, labels: Mapping[str, str]) -> tuple[float, float]:
    """The number with L2 on the weights alone, and what a choice adds to it."""
    l2 = labels["l2"]
    if "model" in labels:
        row = {row["model"]: row for row in published_as("gamma/table-2").rows}[labels["model"]]
        return row["W"], 0.0 if l2 == BASELINE else row[f"diff_{l2}"]
    if artefact in GAINS:
        return 80.0, 0.0 if l2 == BASELINE else GAINS[artefact][l2]
    rows = [*published_as("gamma/table-3").rows, *published_as("gamma/table-4").rows]
    name = l2 if l2 == BASELINE else f"W, {l2}"
    (row,) = [row for row in rows if row["l2"] == name and ("bleu" in row) == ("norm" in labels)]
    return row.get("bleu", row.get("accuracy")) - row.get("diff", 0.0), row.get("diff", 0.0)


def training(artefact: str, right: bool) -> Any:
    def optima(metric: str, labels: Mapping[str, str]) -> Optimum:
        base, gain = printed_gain(artefact, labels)
        value = base + (gain if right else -gain)
        if metric.startswith("training_loss"):
            value = 3.0 - (value - base)
        if metric == "bleu" and artefact == "gamma/guideline-4t":
            value = 30.0
        return Optimum(value, exponent=-4, deviation=0.02)

    translates = artefact in {"gamma/table-3", "gamma/guideline-4t", "gamma/guideline-1t"}
    found, changes = artefact_of(artefact), dict[str, Any]()
    if artefact in IMAGES:
        changes["effort"] = replace(found.settings["paper"]["effort"], rates=RateGrid((2.0**-4,), None))
    context, runs = made_up(artefact, by_optima(optima, translates=translates), extends=True, **changes)
    if artefact == "gamma/guideline-1":
        return compared_by_role(context, runs[""]), shares(right)
    return found(context, runs, **changes)


def shares(right: bool) -> pd.DataFrame:
    """With L2 γ_last and the branch's share are smaller; or larger."""
    small, large = ("gamma_last", BASELINE) if right else (BASELINE, "gamma_last")
    rows = [
        {"l2": l2, "seed": seed, "gamma_last": value, "branch_share": value}
        for l2, mean in ((small, 0.3), (large, 0.9))
        for seed, value in drawn(mean, n=3).by_seed.items()
    ]
    return pd.DataFrame(rows)


WORLDS: dict[str, World] = {
    "gamma/table-1": table_1,
    "gamma/equation-11": half,
    "gamma/figure-6": figure_6,
    "gamma/figure-5": figure_5,
    **{name: partial(training, name) for name in (*IMAGES, *TEXTS)},
}
