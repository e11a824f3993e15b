"""Count the cures of a diagnosis that train.

A cure counts if it can be applied without a person: a scheme, frozen norms, or settings of the optimizer. It is
applied to a fresh copy of the broken training of a row, which then takes the steps of the row. It trains if its
success is above the bar that the broken training stays below. Rows of the held half are only counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

import normless as nl
from normless.doctor._findings import Cure
from normless.doctor.experiments._cures import optimizer_like, treated
from normless.doctor.experiments._engine import set_groups
from normless.residual import residual_map
from tests.faults.catalogue import Case, Training
from tests.faults.diagnosers import diagnosis_of
from tests.faults.training import train


@dataclass(frozen=True)
class Result:
    """The cure that was applied to a row, the kind of its finding, and the success of the training with it."""

    case: Case
    kind: str
    words: str
    success: float

    @property
    def trains(self) -> bool:
        """Whether the training is better than any that is broken."""
        return self.success >= self.case.below

    def __str__(self) -> str:
        bar = f"{self.success:6.2f} ≥ {self.case.below:.2f}  {'trains' if self.trains else 'FAILS'}"
        return f"{self.case.name:42} {self.kind:24} {self.words:36} {bar}"


def first_applicable(diagnosis: nl.doctor.Diagnosis) -> tuple[str, Cure] | None:
    """Return the first cure, with the kind of its finding, that consists of a tried scheme or of settings."""
    cures = ((found.kind, found.cure) for found in diagnosis.findings)
    return next(((kind, cure) for kind, cure in cures if cure.losses or cure.settings), None)


def applied(training: Training, cure: Cure) -> str:
    """Apply a cure to a training in place, and return what was done."""
    name = next(iter(cure.losses), None)
    if name is not None:
        inputs = training.batch[0]
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        network = treated(training.model, name, inputs)
        training.optimizer = optimizer_like(training.optimizer, network, mapped=residual_map(network, *arguments))
        # What refers to the network, such as a measure of success, reads the new one.
        training.model.__class__, training.model.__dict__ = network.__class__, network.__dict__
    set_groups(training.optimizer, cure.settings)
    settings = [f"{key}={value:.3g}" if key == "lr" else f"{key}={value}" for key, value in cure.settings.items()]
    return ", ".join([*filter(None, [name]), *settings])


def result_of(case: Case) -> Result | None:
    """Diagnose the broken training of a row, and train it with the first cure; None if no cure can be applied."""
    training = case.build(broken=True)
    if not isinstance(training, Training) or training.optimizer is None:
        return None
    torch.manual_seed(2)
    try:
        diagnosis = diagnosis_of(training)
    except (RuntimeError, ValueError, TypeError):
        return None
    if (offered := first_applicable(diagnosis)) is None:
        return None
    fresh = case.build(broken=True)
    assert isinstance(fresh, Training)
    words = applied(fresh, offered[1])
    torch.manual_seed(1)
    train(fresh, case.steps)
    return Result(case, offered[0], words, fresh.success())


def counted(cases: Sequence[Case]) -> Iterator[str]:
    """Yield a line for each cure of the seen half, and how many cures of each set and half train."""
    groups: dict[str, list[Result | None]] = {}
    for case in cases:
        if case.truth is None or case.in_loop:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = result_of(case)
        groups.setdefault(f"{case.set}, {case.half}", []).append(result)
        if result is not None and case.half == "seen":
            yield str(result)
    for name, results in groups.items():
        cures = [result for result in results if result is not None]
        yield f"{name}: {len(results)} rows, {len(cures)} cures, {sum(cure.trains for cure in cures)} train"
