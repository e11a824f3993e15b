"""Runs that end as a world says, with noise and the best learning rate known: tables and checks are tested on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from fake_laboratory import Ended, FakeLaboratory
from papers_helpers import CheckedEvidence, checked

from normless_lab.sweeps import Laboratory, Point
from normless_papers.artefact import Budget, Context, Evidence, artefact_of


class Optimum:
    """What a combination reaches at the best learning rate, 2^exponent; None stands for what cannot be trained."""

    def __init__(
        self, value: float | None, exponent: float = -3, deviation: float = 0.05, top5: float = 99.0
    ) -> None:
        self.value, self.exponent, self.deviation, self.top5 = value, exponent, deviation, top5


CHANCE = 0.01

# By metric and labels, what is reached; `ghost` is among the labels where statistics are over ghost batches.
World = Callable[[str, Mapping[str, str]], Optimum]


_NOISE = np.random.default_rng(0).standard_normal(64).tolist()


def laboratory_of(world: World, *, translates: bool = False) -> FakeLaboratory:
    """A laboratory whose runs end as a world says, with BLEU if they translate."""
    metrics = ("test_accuracy", "training_loss", "training_loss_with_l2")

    def end(point: Point) -> Ended:
        ghost = point.config.to_dict().get("ghost_batch_size")
        labels = point.labels if ghost is None else {**point.labels, "ghost": str(ghost)}
        reached = {metric: world(metric, labels) for metric in metrics}
        numbers = dict.fromkeys(metrics, math.nan)
        diverged = any(optimum.value is None for optimum in reached.values())
        for metric, entry in reached.items() if not diverged else ():
            accuracy = metric == "test_accuracy"
            off = abs(math.log2(point.rate) - entry.exponent)
            noise = entry.deviation * _NOISE[point.seed % 64]
            value = cast(float, entry.value) + noise + off * (-1.0 if accuracy else 0.05)
            numbers[metric] = value / 100 if accuracy else max(value, 0.0)
        result = {"test_accuracy": numbers.pop("test_accuracy"), "chance_accuracy": CHANCE}
        result["test_accuracy_top5"] = 0.5 if diverged else reached["test_accuracy"].top5 / 100
        if translates:
            result["test_bleu_beam"] = cast(float, world("bleu", point.labels).value) + 0.001 * (point.seed % 64)
        epoch = {"epoch": 1, "training_accuracy": math.nan, **numbers}
        return Ended(result, "diverged" if diverged else "trained", [epoch])

    return FakeLaboratory(end, extends=True)


def invented(
    artefact: str, world: World, folder: Path, budget: Budget = "paper", **options: Any
) -> tuple[CheckedEvidence, FakeLaboratory]:
    """An artefact at a budget in a made-up world, and the laboratory that noted what it asked for.

    Args:
        artefact: its id.
        world: how runs end.
        folder: of the artefact's own.
        budget: whose settings are taken.
        options: as in `measured`.
    """
    evidence, laboratory = measured(artefact, world, folder, budget, **options)
    return checked(artefact, evidence), laboratory


def measured(
    artefact: str,
    world: World,
    folder: Path,
    budget: Budget = "paper",
    *,
    few: bool = True,
    translates: bool = False,
    **changes: Any,
) -> tuple[Evidence, FakeLaboratory]:
    """`invented` without the checks.

    Args:
        artefact, world, folder, budget: as there.
        few: take the best 3 of 4 in the place of the paper's 12 of 15, which is faster.
        translates: runs have BLEU.
        changes: of the settings.
    """
    laboratory = laboratory_of(world, translates=translates)
    found = artefact_of(artefact)
    settings = {**found.settings[budget], **changes}
    if few and settings["effort"].replicates > 4:
        effort = settings["effort"]
        settings["effort"] = replace(effort, replicates=4, best=3, rates=replace(effort.rates, extensions=2))
    context = Context(budget, cast(Laboratory, laboratory), folder, data_root="texts")
    return found.function(context, **settings), laboratory
