"""A laboratory that trains nothing and ends every run as a function of its settings says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from normless.sweeps import Laboratory, RunOutcome, RunRow, Sweep, SweepResult, sweep_result
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


class MadeUpLaboratory:
    """Stands for a `Laboratory`; the sweeps it is asked for are noted in `sweeps`."""

    def __init__(self, endings: Endings) -> None:
        self.endings = endings
        self.sweeps: list[Sweep] = []

    def run(self, sweep: Sweep, **_: Any) -> SweepResult:
        """As `Laboratory.run`."""
        self.sweeps.append(sweep)
        points = sweep.points()
        rows = {point.config.hash: self._row(point.config, point.labels) for point in points}
        return sweep_result(sweep, [(point.config.hash, point) for point in points], rows)

    def carry_out(self, configs: Sequence[Any]) -> list[RunRow]:
        """No row is kept."""
        return []

    def _row(self, config: Any, labels: Mapping[str, str]) -> RunRow:
        ending, settings = self.endings(labels, config.to_dict()), config.to_dict()
        more = 0.0005 * settings["seed"]
        epoch = {"epoch": 1, "rate": settings["rate"], "training_loss": 1.0, "seconds": 0.0}
        epoch |= {"validation_loss": 1.0, "validation_bleu": None}
        training = ending.test_accuracy if ending.training_accuracy is None else ending.training_accuracy
        epoch |= {"training_accuracy": training + more, "test_accuracy": ending.test_accuracy + more}
        result: Any = {"epochs": [epoch], "test_accuracy": ending.test_accuracy + more}
        result |= {"chance_accuracy": ending.chance, "test_bleu_beam": ending.bleu + more}
        error = "ValueError: no" if ending.outcome == "failed" else None
        kept = None if ending.outcome == "failed" else result
        return RunRow(config.hash, config.COMMAND, settings, ending.outcome, error, kept, 0.0, "", "", {})


def made_up(endings: Endings, folder: Path, budget: Budget = "paper") -> Context:
    """A context at a budget whose runs end as a function says."""
    return Context(budget, cast(Laboratory, MadeUpLaboratory(endings)), folder, data_root="texts")


def facts_of(artefact: str, endings: Endings, folder: Path, budget: Budget = "paper") -> Any:
    """The facts of an artefact whose runs end as a function says."""
    found = artefact_of(artefact)
    return found.function(made_up(endings, folder, budget), **found.settings[budget]).facts
