"""Prove that each repaired training trains and each broken one does not, and print a table."""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.faults import measures
from benchmarks.faults.case import Case, Training


@dataclass(frozen=True)
class Row:
    """Hold what the check found for one case; `broken` is not a number for a healthy training."""

    case: Case
    twin: float
    broken: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Return whether the twin reaches its bar and the broken training stays below its own."""
        separated = self.case.truth is None or not self.broken >= self.case.below
        return self.twin >= self.case.reaches and separated

    def __str__(self) -> str:
        mark = "ok" if self.passed else "FAILS"
        return (
            f"{self.case.name:42} {self.case.half:4} {self.case.kind:14} N={self.case.steps:<3} "
            f"twin {self.twin:6.2f} ≥ {self.case.reaches:.2f}  broken {self.broken:7.2f} < {self.case.below:.2f}  "
            f"{1e3 * self.seconds:5.1f} ms a step  {mark}"
        )


def success_after_training(case: Case, broken: bool) -> tuple[float, float]:
    """Return the success after the steps of the case, and the seconds of one step."""
    training = case.build(broken)
    torch.manual_seed(1)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = (
            measures.train(training, case.steps) if isinstance(training, Training) else measures.run_loop(training)
        )
    seconds = (time.perf_counter() - begin) / max(len(losses), 1)
    return training.success(), seconds


def checked(cases: Sequence[Case]) -> list[Row]:
    """Train the twin and the broken training of every case."""
    rows = []
    for case in cases:
        twin, seconds = success_after_training(case, broken=False)
        broken = math.nan if case.truth is None else success_after_training(case, broken=True)[0]
        rows.append(Row(case, twin, broken, seconds))
    return rows
