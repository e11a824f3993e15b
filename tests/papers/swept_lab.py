"""A laboratory that trains nothing: every run of a sweep ends as a function says, with epochs of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from normless.sweeps.laboratory import Laboratory, SweepResult
from normless.sweeps.sweep import Point, Sweep
from normless_papers.artefact import Context, Evidence, artefact_of

CHANCE = 10.0
# Points of accuracy, far less than what claims are about.
_NOISE = 0.02 * np.random.default_rng(0).standard_normal(64)


@dataclass(frozen=True)
class End:
    """How a run ends.

    Attributes:
        test: accuracy in percent; None of a run that diverges.
        training: accuracy in percent.
        loss: of the training, in nats.
        doublings: of its epochs.
        first_rate: of its first epoch; its learning rate if None.
    """

    test: float | None
    training: float = 99.0
    loss: float = 0.01
    doublings: int = 0
    first_rate: float | None = None


Ends = Callable[[Mapping[str, str], Point], End]


class SweptLaboratory:
    """Stands for a `Laboratory`."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends

    def run(self, sweep: Sweep, *, metrics: Sequence[str] = ()) -> SweepResult:
        """Every run of a sweep."""
        runs, epochs = [], []
        for number, point in enumerate(sweep.points()):
            end = self.ends(point.labels, point)
            about = {**point.labels, "rate": point.rate, "seed": point.seed, "hash": f"run-{number}"}
            runs.append({**about, **_row(end, point)})
            epochs += [{**about, **row} for row in _epochs(end, point)]
        return SweepResult(sweep, pd.DataFrame(runs), pd.DataFrame(epochs))

    def carry_out(self, configs: Sequence[Any]) -> list[Any]:
        """No row is kept."""
        return []


def _row(end: End, point: Point) -> dict[str, Any]:
    diverged = end.test is None
    return {
        "outcome": "diverged" if diverged else "trained",
        "test_accuracy": math.nan if end.test is None else (end.test + _NOISE[point.seed]) / 100,
        "chance_accuracy": CHANCE / 100,
        "training_loss": math.nan if diverged else end.loss,
        "epochs": cast(Any, point.config).epochs,
        "doublings": end.doublings,
        "error": None,
    }


def _epochs(end: End, point: Point) -> list[dict[str, float]]:
    """Eight epochs, the rate divided by 10 at half of them and at three quarters; the accuracy does not change."""
    factors = (1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01)
    rows = [
        {
            "epoch": place + 1,
            "epoch_rate": point.rate * factor,
            "training_accuracy": (end.training + _NOISE[point.seed]) / 100,
            "test_accuracy": math.nan if end.test is None else end.test / 100,
        }
        for place, factor in enumerate(factors)
    ]
    rows[0]["epoch_rate"] = end.first_rate or point.rate
    return rows


def swept(artefact: str, ends: Ends, folder: Path, **changes: Any) -> Evidence:
    """An artefact at the paper's budget, its runs ending as a function says."""
    settings = {**artefact_of(artefact).settings["paper"], **changes}
    context = Context("paper", cast(Laboratory, SweptLaboratory(ends)), folder)
    return cast(Evidence, artefact_of(artefact).function(context, **settings))
