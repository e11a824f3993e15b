"""Runs that end as a function says, each with eight epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from fake_laboratory import Ended, FakeLaboratory

from normless_lab.sweeps import Laboratory, Point
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


def laboratory_of(ends: Ends) -> FakeLaboratory:
    """A laboratory whose runs end as a function says."""

    def end(point: Point) -> Ended:
        run = ends(point.labels, point)
        accuracy = math.nan if run.test is None else (run.test + _NOISE[point.seed]) / 100
        result = {"test_accuracy": accuracy, "chance_accuracy": CHANCE / 100, "doublings": run.doublings}
        return Ended(result, "diverged" if run.test is None else "trained", _epochs(run, point))

    return FakeLaboratory(end)


def _epochs(end: End, point: Point) -> list[dict[str, float]]:
    """Eight epochs, the rate divided by 10 at half of them and at three quarters; the accuracy does not change."""
    factors = (1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01)
    rows = [
        {
            "epoch": place + 1,
            "rate": point.rate * factor,
            "training_loss": math.nan if end.test is None else end.loss,
            "training_accuracy": (end.training + _NOISE[point.seed]) / 100,
            "test_accuracy": math.nan if end.test is None else end.test / 100,
        }
        for place, factor in enumerate(factors)
    ]
    rows[0]["rate"] = end.first_rate or point.rate
    return rows


def swept(artefact: str, ends: Ends, folder: Path, **changes: Any) -> Evidence:
    """An artefact at the paper's budget, its runs ending as a function says."""
    settings = {**artefact_of(artefact).settings["paper"], **changes}
    context = Context("paper", cast(Laboratory, laboratory_of(ends)), folder)
    return cast(Evidence, artefact_of(artefact).function(context, **settings))
