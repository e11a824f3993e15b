"""The γ paper's trainings as printed, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
from fake_laboratory import FakeLaboratory
from invented_runs import Optimum, laboratory_of
from worlds.facts import drawn
from worlds.world import World

from normless_lab.sweeps import Laboratory, RateGrid
from normless_papers.artefact import Context, artefact_of
from normless_papers.gamma.decay_comparison import BASELINE
from normless_papers.gamma.image_guidelines import compared_by_role
from normless_papers.published import published_as

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


def laboratory(artefact: str, right: bool) -> FakeLaboratory:
    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        base, gain = printed_gain(artefact, labels)
        value = base + (gain if right else -gain)
        if metric.startswith("training_loss"):
            value = 3.0 - (value - base)
        if metric == "bleu" and artefact == "gamma/guideline-4t":
            value = 30.0
        return Optimum(value, exponent=-4, deviation=0.02)

    translates = artefact in {"gamma/table-3", "gamma/guideline-4t", "gamma/guideline-1t"}
    return laboratory_of(world, translates=translates)


def facts(artefact: str, folder: Path, right: bool) -> Any:
    lab = laboratory(artefact, right)
    context = Context("paper", cast(Laboratory, lab), folder, data_root="texts")
    found = artefact_of(artefact)
    settings = dict(found.settings["paper"])
    if artefact in IMAGES:
        settings["effort"] = replace(settings["effort"], rates=RateGrid((2.0**-4,), None))
    if artefact == "gamma/guideline-1":
        comparison = compared_by_role(context, settings["effort"])
        return comparison, shares(right)
    return found.function(context, **settings).facts


def shares(right: bool) -> pd.DataFrame:
    """With L2 γ_last and the branch's share are smaller; or larger."""
    small, large = ("gamma_last", BASELINE) if right else (BASELINE, "gamma_last")
    return pd.DataFrame(
        [
            {"l2": l2, "seed": seed, "gamma_last": value, "branch_share": value}
            for l2, mean in ((small, 0.3), (large, 0.9))
            for seed, value in drawn(mean, n=3).by_seed.items()
        ]
    )


def _world(artefact: str) -> World:
    return World(
        lambda folder: facts(artefact, folder, True),
        lambda folder: facts(artefact, folder, False),
    )


WORLDS = {name: _world(name) for name in (*IMAGES, *TEXTS)}
