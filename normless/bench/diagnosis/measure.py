"""`normless bench diagnose`: whether diagnoses name the known fault of networks, and their cures train."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn

from normless.arguments import arguments_of
from normless.bench.diagnosis import broken_batches, broken_depth, broken_gradients, broken_training, healthy
from normless.bench.diagnosis.cases import CASES, Case, Patient
from normless.conversion import convert
from normless.diagnosis import Diagnosis, diagnose
from normless.diagnosis.cures import FACTORS, RATE, optimizer_like
from normless.divergence import has_diverged
from normless.optim import param_groups
from normless.probes import descend

FILES = (broken_batches, broken_gradients, broken_depth, broken_training, healthy)
# A cure trains if it lowers the loss of the batch to this share, at one rate.
STEPS, LOWERED = 60, 0.5


@dataclass(frozen=True)
class DiagnosisBench:
    """Which cases to diagnose; all if None.

    Attributes:
        names: of the cases.
        trial_steps: as in `diagnose`.
    """

    names: tuple[str, ...] | None = None
    trial_steps: int = 20


class Result(NamedTuple):
    """A diagnosis of a case: kinds of its findings, the most severe first, and whether its best scheme trains."""

    case: Case
    found: tuple[str, ...]
    cure: str | None
    trains: bool | None
    seconds: float


def measure_diagnosis(bench: DiagnosisBench) -> pd.DataFrame:
    """A row for the cases that were seen while the checks were written, one for those kept aside, one for all.

    Columns: `broken` networks; those with the `right` cause first, with it `named` further down, with `another` cause
    only, and `missed`; `healthy` networks and `false_alarms`; schemes offered as first `cures`, and those that
    `train`; median `seconds`. What was not right is written to standard error.
    """
    results = list(_results(bench))
    rows = [("seen", False), ("kept aside", True)]
    groups = [(name, [one for one in results if one.case.aside is aside]) for name, aside in rows]
    return pd.DataFrame([{"cases": name, **_counts(some)} for name, some in (*groups, ("all", results)) if some])


def _results(bench: DiagnosisBench) -> Iterator[Result]:
    for case in CASES.values() if bench.names is None else [CASES[name] for name in bench.names]:
        patient, start = case.make(), perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            diagnosis = diagnose(
                patient.model,
                patient.batch,
                loss=patient.loss,
                optimizer=patient.optimizer,
                trial_steps=bench.trial_steps,
            )
        seconds = perf_counter() - start
        cure = _first_cure(diagnosis)
        result = Result(
            case,
            tuple(one.kind for one in diagnosis.findings),
            cure,
            None if cure is None else _trains(case, cure),
            seconds,
        )
        if not _is_right(result) or result.trains is False:
            sys.stderr.write(f"{case.name}: {', '.join(result.found) or 'nothing'}; cure {cure}, {result.trains}\n")
        yield result


def _first_cure(diagnosis: Diagnosis) -> str | None:
    """The first scheme of the first finding, if it was tried; a network that carries one is not converted again."""
    return next(iter(diagnosis.findings[0].cure.losses), None) if diagnosis.findings else None


def _is_right(result: Result) -> bool:
    if result.case.healthy:
        return not result.found
    return bool(result.found) and result.found[0] in result.case.causes


def _counts(results: list[Result]) -> dict[str, float]:
    broken = [one for one in results if not one.case.healthy]
    right = [one for one in broken if _is_right(one)]
    named = [one for one in broken if one not in right and set(one.found) & set(one.case.causes)]
    missed = [one for one in broken if not one.found]
    healthy_ones = [one for one in results if one.case.healthy]
    cures = [one for one in broken if one.trains is not None]
    return {
        "broken": len(broken),
        "right": len(right),
        "named": len(named),
        "another": len(broken) - len(right) - len(named) - len(missed),
        "missed": len(missed),
        "healthy": len(healthy_ones),
        "false_alarms": sum(bool(one.found) for one in healthy_ones),
        "cures": len(cures),
        "train": sum(bool(one.trains) for one in cures),
        "seconds": pd.Series([one.seconds for one in results]).median(),
    }


def _trains(case: Case, scheme: str) -> bool:
    """Whether a network converted by a scheme learns its batch, at one of several rates."""
    for factor in FACTORS:
        patient = case.make()
        positional, named = arguments_of(patient.batch[0])
        network = convert(patient.model, scheme, *positional, **named)
        losses = list(_losses(patient, network, factor))
        if not has_diverged(losses[-1]) and losses[-1] < LOWERED * losses[0]:
            return True
    return False


def _losses(patient: Patient, network: nn.Module, factor: float) -> Iterator[float]:
    if patient.optimizer is not None:
        optimizer = optimizer_like(patient.optimizer, network, factor)
    else:
        groups = param_groups(network, lr=RATE * factor, weight_decay=0.0)
        optimizer = torch.optim.SGD(groups, lr=RATE * factor, momentum=0.9)
    yield from descend(network.train(), [patient.batch] * STEPS, optimizer, loss=patient.loss)
