"""Diagnosers that the scorer can run: normless, and a baseline; `benchmarks/rivals` adds tools of other people.

TrainCheck 0.2 has no adapter: it rewrites a script, compares it with invariants of a similar healthy script, and
needs a CUDA driver. It takes neither a model and a batch nor a loop.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

import normless as nl
from tests.faults import training as trainings
from tests.faults.catalogue import Loop, Training

Diagnose = Callable[[Training], Sequence[str]]
Watch = Callable[[Loop], Sequence[str]]


@dataclass(frozen=True)
class Diagnoser:
    """Hold a diagnoser: functions that return ranked texts of a training and of a loop, and the package they need."""

    name: str
    diagnose: Diagnose | None
    watch: Watch | None
    package: str


def diagnosis_of(training: Training) -> nl.doctor.Diagnosis:
    """Return what `normless.diagnose` returns."""
    return nl.diagnose(
        training.model, training.batch, loss=training.loss, optimizer=training.optimizer, **training.options
    )


def normless_diagnose(training: Training) -> list[str]:
    """Return the findings of `normless.diagnose`, without its advice."""
    return [str(finding) for finding in diagnosis_of(training).findings]


def normless_watch(loop: Loop) -> list[str]:
    """Return the messages of `normless.watch`, or its findings where the row asks for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with nl.watch(loop.model) as watch:

            def observe(loss: Tensor) -> None:
                watch.loss(loss)

            loop.run(loop.model, loop.batches, loop.optimizer, observe)
    if not loop.by_findings:
        return [str(message) for message in watch.messages]
    return [str(found) for found in watch.findings if found.kind not in ("large_updates", "small_updates", "jump")]


def on_one_batch(training: Training, steps: int) -> list[float]:
    """Train on the batch alone, and return the losses."""
    return trainings.train(replace(training, stream=None), steps)


def halved(losses: Sequence[float]) -> list[str]:
    """Return one text if a training does not halve the loss: the least that a diagnoser may know."""
    first, last = losses[0], sum(losses[-5:]) / len(losses[-5:])
    if last != last or last - first > abs(first):
        return [f"the loss is not finite or diverges: {first:.3g} → {last:.3g}"]
    return [] if last <= 0.5 * first else [f"the batch is not fitted: the loss stays at {first:.3g} → {last:.3g}"]


DIAGNOSERS = {
    "normless": Diagnoser("normless", normless_diagnose, normless_watch, "normless"),
    "baseline": Diagnoser(
        "baseline",
        lambda training: halved(on_one_batch(training, 50)),
        lambda loop: halved(trainings.run_loop(loop)),
        "torch",
    ),
}


def diagnoser_of(name: str) -> Diagnoser:
    """Return a diagnoser of `DIAGNOSERS`, or "module:function" for a function of a training."""
    if ":" in name:
        module, function = name.split(":")
        return Diagnoser(name, getattr(importlib.import_module(module), function), None, "torch")
    if name not in DIAGNOSERS:
        names = ", ".join(DIAGNOSERS)
        raise ValueError(f"No diagnoser is called {name!r}; choose one of {names}, or module:function.")
    return DIAGNOSERS[name]
