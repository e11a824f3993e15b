"""A laboratory that trains nothing and makes up how runs end: tables and checks are tested on known worlds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from papers_helpers import CheckedEvidence, checked

from normless.sweeps.laboratory import Laboratory, SweepResult
from normless.sweeps.protocol import further_points
from normless.sweeps.sweep import Point, Sweep
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


class InventedLaboratory:
    """Stands for a `Laboratory`: runs end as a world says, and every sweep is noted in `sweeps`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sweeps: list[Sweep] = []
        self.points: list[Point] = []
        self._noise = np.random.default_rng(0).standard_normal(64).tolist()

    def run(self, sweep: Sweep, *, metrics: Sequence[str] = ("test_accuracy",)) -> SweepResult:
        """As `Laboratory.run`, extensions of the learning rates included."""
        self.sweeps.append(sweep)
        points = list(sweep.points())
        table = self._table(points)
        while more := further_points(sweep, table, metrics):
            points += more
            table = pd.concat([table, self._table(more)], ignore_index=True)
        self.points += points
        return SweepResult(sweep, table, pd.DataFrame())

    def carry_out(self, configs: Sequence[Any]) -> list[Any]:
        """No row is kept."""
        return []

    def _table(self, points: Sequence[Point]) -> pd.DataFrame:
        return pd.DataFrame([{**point.labels, **self._row(point)} for point in points])

    def _row(self, point: Point) -> dict[str, Any]:
        metrics = ("test_accuracy", "training_loss", "training_loss_with_l2")
        ghost = point.config.to_dict().get("ghost_batch_size")
        labels = point.labels if ghost is None else {**point.labels, "ghost": str(ghost)}
        reached = {metric: self.world(metric, labels) for metric in metrics}
        row: dict[str, Any] = {"rate": point.rate, "seed": point.seed, "outcome": "trained", "error": None}
        if any(one.value is None for one in reached.values()):
            reached = dict.fromkeys(metrics, math.nan)
            return {**row, "outcome": "diverged", **reached, "test_accuracy_top5": 0.5, "chance_accuracy": CHANCE}
        for metric, one in reached.items():
            accuracy = metric == "test_accuracy"
            off = abs(math.log2(point.rate) - one.exponent)
            noise = one.deviation * self._noise[point.seed % 64]
            value = cast(float, one.value) + noise + off * (-1.0 if accuracy else 0.05)
            row[metric] = value / 100 if accuracy else max(value, 0.0)
        return row | {"test_accuracy_top5": reached["test_accuracy"].top5 / 100, "chance_accuracy": CHANCE}


def invented(
    artefact: str, world: World, folder: Path, budget: Budget = "paper", *, few: bool = True, **changes: Any
) -> tuple[CheckedEvidence, InventedLaboratory]:
    """An artefact at a budget in a made-up world, and the laboratory that noted what it asked for.

    Args:
        artefact: its id.
        world: how runs end.
        folder: of the artefact's own.
        budget: whose settings are taken.
        few: take the best 3 of 4 in the place of the paper's 12 of 15, which is faster.
        changes: of the settings.
    """
    evidence, laboratory = measured(artefact, world, folder, budget, few=few, **changes)
    return checked(artefact, evidence), laboratory


def measured(
    artefact: str, world: World, folder: Path, budget: Budget = "paper", *, few: bool = True, **changes: Any
) -> tuple[Evidence, InventedLaboratory]:
    """`invented` without the checks."""
    laboratory = InventedLaboratory(world)
    found = artefact_of(artefact)
    settings = {**found.settings[budget], **changes}
    if few and settings["effort"].replicates > 4:
        effort = settings["effort"]
        settings["effort"] = replace(effort, replicates=4, best=3, rates=replace(effort.rates, extensions=2))
    return found.function(Context(budget, cast(Laboratory, laboratory), folder), **settings), laboratory
