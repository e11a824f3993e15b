"""Whether diagnoses name the known fault of networks, and whether their cures train."""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import pandas as pd
from torch.optim import SGD

from benchmarks.diagnosis import broken_batches, broken_depth, broken_gradients, broken_training, healthy
from benchmarks.diagnosis.cases import CASES, Case
from normless._internal.arguments import arguments_of
from normless.diagnosis import Diagnosis, diagnose
from normless.diagnosis.cures import FACTORS, MOMENTUM, RATE, optimizer_like, treated
from normless.probes import descend, has_diverged
from normless.residual import residual_map

FILES = (broken_batches, broken_gradients, broken_depth, broken_training, healthy)
# A cure trains if it lowers the loss of the batch to this share, at one rate.
STEPS, LOWERED = 60, 0.5


@dataclass(frozen=True)
class DiagnosisBench:
    """Which cases to diagnose; all if None.

    Attributes:
        names: of the cases.
        trial_steps: as in `diagnose`.
        out: folder of the results, one line of JSON each; cases that it has are not run again.
    """

    names: Sequence[str] | None = None
    trial_steps: int = 20
    out: Path | None = None


class Result(NamedTuple):
    """A diagnosis of a case: kinds of its findings and of its advice, and whether its best cure trains.

    The most severe are first.
    """

    name: str
    found: list[str]
    cure: str | None
    trains: bool | None
    seconds: float
    advised: list[str]

    @property
    def case(self) -> Case:
        """The case of this name."""
        return CASES[self.name]

    @property
    def is_right(self) -> bool:
        """Whether a true cause is first, or nothing is said of a healthy network."""
        return self.found[0] in self.case.causes if self.found else self.case.healthy


def measure_diagnosis(bench: DiagnosisBench) -> pd.DataFrame:
    """A row for the cases that were seen while the checks were written, one for those kept aside, one for all.

    Columns: `broken` networks; those with the `right` cause first, with it `named` further down, or as `advice` where
    trial steps fit the batch all the same, with `another` cause only, and `missed`; `healthy` networks and
    `false_alarms`; cures offered first, `cures`, and those that `train`; median `seconds`. The table of truths and
    diagnoses is written to standard error.
    """
    results = list(_results(bench))
    rows = [("seen", False), ("kept aside", True)]
    groups = [(name, [one for one in results if one.case.aside is aside]) for name, aside in rows]
    sys.stderr.write(f"{confusion(results).to_string(index=False)}\n")
    return pd.DataFrame([{"cases": name, **_counts(some)} for name, some in (*groups, ("all", results)) if some])


def confusion(results: list[Result]) -> pd.DataFrame:
    """A row per true cause: its cases, the right diagnoses, and what was said of the others, with the case."""
    rows = []
    for truth in dict.fromkeys((*one.case.causes, "healthy")[0] for one in results):
        some = [one for one in results if (*one.case.causes, "healthy")[0] == truth]
        said = Counter((*one.found, "nothing")[0] for one in some if one.is_right)
        wrong = [f"{(*one.found, 'nothing')[0]} ({one.name})" for one in some if not one.is_right]
        fails = [f"{one.cure} ({one.name})" for one in some if one.trains is False]
        diagnosis = ", ".join(f"{kind} {count}" for kind, count in said.most_common())
        rows.append((truth, len(some), diagnosis, ", ".join(wrong) or "-", ", ".join(fails) or "-"))
    return pd.DataFrame(rows, columns=["truth", "cases", "right", "wrong", "cures that do not train"])


def _results(bench: DiagnosisBench) -> Iterator[Result]:
    path = None if bench.out is None else bench.out / "diagnosis.jsonl"
    known = {}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        known = {one.name: one for one in (Result(**json.loads(line)) for line in lines)}
    for name in CASES if bench.names is None else bench.names:
        result = known.get(name) or _result(CASES[name], bench.trial_steps)
        if path is not None and name not in known:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result._asdict()) + "\n")
        yield result


def _result(case: Case, steps: int) -> Result:
    patient, start = case.make(), perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diagnosis = diagnose(
            patient.model, patient.batch, loss=patient.loss, optimizer=patient.optimizer, trial_steps=steps
        )
    seconds, cure = perf_counter() - start, _first_cure(diagnosis)
    trains = None if cure is None else _trains(case, cure)
    found, advised = ([one.kind for one in some] for some in (diagnosis.findings, diagnosis.advice))
    return Result(case.name, found, cure, trains, seconds, advised)


def _first_cure(diagnosis: Diagnosis) -> str | None:
    """The first cure of the first finding, if one was tried; a network that carries a scheme gets none."""
    return next(iter(diagnosis.findings[0].cure.losses), None) if diagnosis.findings else None


def _counts(results: list[Result]) -> dict[str, float]:
    broken = [one for one in results if not one.case.healthy]
    right = [one for one in broken if one.is_right]
    named = [one for one in broken if one not in right and set(one.found) & set(one.case.causes)]
    advised = [one for one in broken if one not in right + named and set(one.advised) & set(one.case.causes)]
    missed = [one for one in broken if not one.found and one not in advised]
    healthy_ones = [one for one in results if one.case.healthy]
    cures = [one for one in broken if one.trains is not None]
    return {
        "broken": len(broken),
        "right": len(right),
        "named": len(named),
        "advice": len(advised),
        "another": len(broken) - len(right) - len(named) - len(advised) - len(missed),
        "missed": len(missed),
        "healthy": len(healthy_ones),
        "false_alarms": sum(bool(one.found) for one in healthy_ones),
        "cures": len(cures),
        "train": sum(bool(one.trains) for one in cures),
        "seconds": pd.Series([one.seconds for one in results]).median(),
    }


def _trains(case: Case, cure: str) -> bool:
    """Whether a treated network learns its batch, at one of several rates."""
    patient = case.make()
    positional, named = arguments_of(patient.batch[0])
    mapped = residual_map(treated(patient.model, cure, patient.batch[0]), *positional, **named)
    given = patient.optimizer or SGD(patient.model.parameters(), RATE, MOMENTUM)
    for factor in FACTORS:
        network = treated(case.make().model, cure, patient.batch[0]).train()
        batches = [patient.batch] * STEPS
        losses = list(descend(network, batches, optimizer_like(given, network, factor, mapped), loss=patient.loss))
        if not has_diverged(losses[-1]) and losses[-1] < LOWERED * losses[0]:
            return True
    return False
