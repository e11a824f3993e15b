"""Score a diagnoser on the catalogue of faults, check or list its rows: `python -m tests.faults --help`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

from tests.faults.catalogue import Case, Training, catalogue
from tests.faults.cures import counted
from tests.faults.diagnosers import DIAGNOSERS
from tests.faults.scorer import measured, table
from tests.faults.sources import COLLECTIONS
from tests.faults.training import run_loop, train


def listed(cases: list[Case]) -> str:
    """Return the rows with their sources, and how many there are of each set, half, kind and source."""
    lines = [f"{case.name:42} {case.half:4} {case.kind:14} {case.source}" for case in cases]
    counts = (
        Counter(f"{case.set}, {case.half}, {'broken' if case.truth else 'healthy'}" for case in cases),
        Counter(case.kind for case in cases),
        Counter(case.source.collection for case in cases),
    )
    lines += [", ".join(f"{name}: {number}" for name, number in count.most_common()) for count in counts]
    return "\n".join([*lines, *(f"{name}: {how}" for name, how in COLLECTIONS.items())])


def success_after_training(case: Case, broken: bool) -> float:
    """Return the success after the steps of the row."""
    training = case.build(broken)
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(training, Training):
            train(training, case.steps)
        else:
            run_loop(training)
    return training.success()


def checked(case: Case) -> tuple[bool, str]:
    """Return whether the twin reaches its bar and the broken training stays below its own, and a line of text."""
    twin = success_after_training(case, broken=False)
    broken = success_after_training(case, broken=True) if case.has_twin else float("nan")
    holds = twin >= case.reaches and not broken >= case.below
    bars = f"twin {twin:6.2f} ≥ {case.reaches:.2f}  broken {broken:7.2f} < {case.below:.2f}"
    return (
        holds,
        f"{case.name:42} {case.half:4} {case.kind:14} {case.steps:3} steps  {bars}  {'' if holds else 'FAILS'}",
    )


def main() -> int:
    """Run what the options ask for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the rows and their sources")
    parser.add_argument("--check", action="store_true", help="train every row and its twin, and print a table")
    parser.add_argument("--cures", action="store_true", help="train with the first cure that needs no person")
    parser.add_argument(
        "--diagnoser", action="append", default=[], help=f"{', '.join(DIAGNOSERS)}, or module:function"
    )
    parser.add_argument("--half", choices=("seen", "held", "all"), default="seen")
    parser.add_argument("--set", choices=("published", "kinds", "reports", "checks"), help="only these rows")
    parser.add_argument("--names", nargs="*", default=[], help="only these rows")
    parser.add_argument("--workers", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of one question")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to which answers are added")
    options = parser.parse_args()
    cases = [case for case in catalogue(options.half, options.names) if options.set in (None, case.set)]
    torch.set_num_threads(1)
    failed = 0
    if options.list:
        sys.stdout.write(listed(cases) + "\n")
    for case in cases if options.check else ():
        if case.has_twin or case.truth is None:
            holds, text = checked(case)
            failed += not holds
            sys.stdout.write(f"{text}\n")
    for text in counted(cases) if options.cures else ():
        sys.stdout.write(f"{text}\n")
    for name in options.diagnoser:
        given = measured(name, cases, options.out, options.workers, options.seconds)
        sys.stdout.write(f"{name}\n{table({case.name: case for case in cases}, given)}\n")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
