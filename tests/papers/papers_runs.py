"""Runs of artefacts that were not trained: each ends as a function says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from papers_helpers import CheckedEvidence, checked

from normless_lab.sweeps import Point, RunRow, Sweep, SweepResult
from normless_lab.sweeps._result_tables import further_points, sweep_result
from normless_lab.sweeps._runs import RunOutcome
from normless_papers.artefact import Budget, Context, Evidence, artefact_of
from normless_papers.experiments.runs import Runs, runs_of

_NOISE = np.random.default_rng(0).standard_normal(64).tolist()
# Learning rates are divided by 10 at half of the epochs and at three quarters.
_FACTORS = (1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01)


@dataclass(frozen=True)
class End:
    """How a run ends, in each of its eight epochs alike; seeds differ by little noise.

    Attributes:
        test: accuracy in percent; None of a run that diverges.
        training: accuracy in percent; the test accuracy if None.
        loss: of the training; that with L2 is the same.
        chance: accuracy of the best constant guess, in percent.
        bleu: of a translation.
        doublings: of its epochs.
        first_rate: of its first epoch; its learning rate if None.
        top5: accuracy in percent.
        noise: deviation of the accuracies, in percent.
    """

    test: float | None
    training: float | None = None
    loss: float = 0.01
    chance: float = 10.0
    bleu: float = math.nan
    doublings: int = 0
    first_rate: float | None = None
    top5: float = 99.0
    noise: float = 0.02


@dataclass(frozen=True)
class Optimum:
    """What a combination reaches at the best learning rate, 2^exponent; None stands for what cannot be trained."""

    value: float | None
    exponent: float = -3
    deviation: float = 0.05
    top5: float = 99.0


Ends = Callable[[Mapping[str, str], Point], End]
# By metric and labels; `ghost` is among the labels where statistics are over ghost batches.
Optima = Callable[[str, Mapping[str, str]], Optimum]


def made_up(
    artefact: str, ends: Ends, budget: Budget = "paper", *, extends: bool = False, **changes: Any
) -> tuple[Context, dict[str, Runs]]:
    """A context, and the runs of an artefact in it, some of its settings changed, which end as a function says.

    With `extends`, learning rates are extended where an optimum lies at their end.
    """
    context = Context(budget, Path("nowhere"), data_root="texts")
    trainings = artefact_of(artefact).trainings(context, **changes)
    return context, {
        name: runs_of(own, [_swept(sweep, ends, own.metrics if extends else ()) for sweep in own.sweeps])
        for name, own in trainings.items()
    }


def _swept(sweep: Sweep, ends: Ends, metrics: Sequence[str]) -> SweepResult:
    """The result of a sweep, with learning rates extended for the optima by some metrics."""
    named: list[tuple[str, Point]] = []
    rows: dict[str, RunRow] = {}
    further = sweep.points()
    while further:
        for point in further:
            # A name instead of the hash, which takes longer than all the rest.
            row = _row_of(f"run-{sweep.name}-{len(named)}", ends, point)
            named.append((row.hash, point))
            rows[row.hash] = row
        result = sweep_result(sweep, named, rows)
        further = further_points(sweep, result.runs, metrics) if metrics else ()
    return result


def _row_of(name: str, ends: Ends, point: Point) -> RunRow:
    config = point.config
    values = config.to_dict()
    ghost = values.get("ghost_batch_size")
    end = ends(point.labels if ghost is None else {**point.labels, "ghost": str(ghost)}, point)
    outcome: RunOutcome = "diverged" if end.test is None else "trained"
    return RunRow(name, config.KIND, values, outcome, None, _result(end, point), 1.0, "", "", {})


def _result(end: End, point: Point) -> dict[str, Any]:
    """The result of a run as its row holds it."""
    noise = end.noise * _NOISE[point.seed % 64]
    test = math.nan if end.test is None else (end.test + noise) / 100
    training = test if end.training is None else (end.training + noise) / 100
    loss = math.nan if end.test is None else end.loss
    epoch = {"training_loss": loss, "training_loss_with_l2": loss, "validation_loss": 1.0, "validation_bleu": None}
    epoch |= {"training_accuracy": training, "test_accuracy": test, "seconds": 0.0}
    epochs = [epoch | {"epoch": place + 1, "rate": point.rate * factor} for place, factor in enumerate(_FACTORS)]
    epochs[0]["rate"] = end.first_rate or point.rate
    result = {"test_accuracy": test, "chance_accuracy": end.chance / 100, "doublings": end.doublings}
    result |= {"test_accuracy_top5": end.top5 / 100, "test_bleu_beam": end.bleu + 0.001 * (point.seed % 64)}
    return result | {"epochs": epochs}


def by_optima(optima: Optima, *, translates: bool = False) -> Ends:
    """Runs whose accuracies and losses are the worse, the further their rates are from the best."""

    def end(labels: Mapping[str, str], point: Point) -> End:
        found = {metric: optima(metric, labels) for metric in ("test_accuracy", "training_loss")}
        numbers = {metric: _at(point, metric, optimum) for metric, optimum in found.items()}
        top5 = found["test_accuracy"].top5
        if None in numbers.values():
            return End(None, chance=1.0, top5=50.0)
        bleu = cast(float, optima("bleu", labels).value) if translates else math.nan
        loss = cast(float, numbers["training_loss"])
        return End(numbers["test_accuracy"], loss=loss, chance=1.0, bleu=bleu, top5=top5, noise=0.0)

    return end


def _at(point: Point, metric: str, optimum: Optimum) -> float | None:
    """What a run reaches by its rate and seed."""
    if optimum.value is None:
        return None
    off = abs(math.log2(point.rate) - optimum.exponent)
    value: float = optimum.value + optimum.deviation * _NOISE[point.seed % 64]
    return value - off if metric == "test_accuracy" else max(value + 0.05 * off, 0.0)


def evidence_of(artefact: str, ends: Ends, budget: Budget = "paper", **changes: Any) -> CheckedEvidence:
    """The evidence of an artefact whose runs end as a function says, some of its settings changed."""
    context, runs = made_up(artefact, ends, budget, **changes)
    return checked(artefact, artefact_of(artefact)(context, runs, **changes))


def measured(artefact: str, optima: Optima, **changes: Any) -> Evidence:
    """An artefact whose runs have known optima, of which it takes the best 3 of 4 instead of 12 of 15."""
    effort = artefact_of(artefact).settings["paper"]["effort"]
    if effort.replicates > 4:
        effort = replace(effort, replicates=4, best=3, rates=replace(effort.rates, extensions=2))
    changes = {"effort": effort, **changes}
    context, runs = made_up(artefact, by_optima(optima), extends=True, **changes)
    return artefact_of(artefact)(context, runs, **changes)
