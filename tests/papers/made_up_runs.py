"""Runs that end as a function of their labels and settings says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fake_laboratory import Ended, FakeLaboratory

from normless_lab.sweeps import Laboratory, Point, RunOutcome
from normless_papers.artefact import Budget, Context, artefact_of


@dataclass(frozen=True)
class Ending:
    """How a run ends.

    Attributes:
        test_accuracy: 0 to 1; each further seed has a little more.
        outcome: of the run.
        training_accuracy: of its epochs, 0 to 1; the test accuracy if None.
        bleu: of a translation.
        chance: accuracy of the best constant guess.
    """

    test_accuracy: float
    outcome: RunOutcome = "trained"
    training_accuracy: float | None = None
    bleu: float = math.nan
    chance: float = 0.1


# Of a run's labels and settings.
Endings = Callable[[Mapping[str, str], Mapping[str, Any]], Ending]


def laboratory_of(endings: Endings) -> FakeLaboratory:
    """A laboratory whose runs end as a function says."""

    def end(point: Point) -> Ended:
        settings = point.config.to_dict()
        ending = endings(point.labels, settings)
        more = 0.0005 * settings["seed"]
        training = ending.test_accuracy if ending.training_accuracy is None else ending.training_accuracy
        epoch = {"epoch": 1, "rate": settings["rate"], "training_loss": 1.0, "seconds": 0.0}
        epoch |= {"validation_loss": 1.0, "validation_bleu": None}
        epoch |= {"training_accuracy": training + more, "test_accuracy": ending.test_accuracy + more}
        result = {"test_accuracy": ending.test_accuracy + more, "chance_accuracy": ending.chance}
        return Ended({**result, "test_bleu_beam": ending.bleu + more}, ending.outcome, [epoch])

    return FakeLaboratory(end)


def made_up(endings: Endings, folder: Path, budget: Budget = "paper") -> Context:
    """A context at a budget whose runs end as a function says."""
    return Context(budget, cast(Laboratory, laboratory_of(endings)), folder, data_root="texts")


def facts_of(artefact: str, endings: Endings, folder: Path, budget: Budget = "paper") -> Any:
    """The facts of an artefact whose runs end as a function says."""
    found = artefact_of(artefact)
    return found.function(made_up(endings, folder, budget), **found.settings[budget]).facts
