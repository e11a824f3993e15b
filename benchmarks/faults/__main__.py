"""Check the cases, list their sources, or measure a diagnoser: `python -m benchmarks.faults --help`."""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

from benchmarks.faults.case import Case, all_cases
from benchmarks.faults.check import checked
from benchmarks.faults.measure import measured
from benchmarks.faults.rivals import RIVALS
from benchmarks.faults.score import table
from benchmarks.faults.sources import COLLECTIONS


def listed(cases: list[Case]) -> str:
    """Return the cases with their sources, and how many there are of each kind, source and half."""
    lines = []
    for case in cases:
        source = case.source
        read = "" if source.consulted else " (from memory)"
        lines.append(f"{case.name:42} {case.half:4} {case.kind:14} {source.collection}: {source.item}{read}")
    for title, count in (
        ("kind", Counter(case.kind for case in cases)),
        ("source", Counter(case.source.collection for case in cases)),
        ("half", Counter(f"{case.half}, {'broken' if case.truth else 'healthy'}" for case in cases)),
    ):
        lines.append(f"{title}: " + ", ".join(f"{name} {number}" for name, number in count.most_common()))
    lines += [f"{name}: {how}" for name, how in COLLECTIONS.items()]
    return "\n".join(lines)


def main() -> int:
    """Run what the options ask for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--check", action="store_true", help="train every case and its twin, and print a table")
    parser.add_argument("--list", action="store_true", help="print the cases and their sources")
    parser.add_argument("--diagnoser", action="append", default=[], help=f"{', '.join(RIVALS)}, or module:function")
    parser.add_argument("--half", choices=("seen", "held", "all"), default="seen")
    parser.add_argument("--names", nargs="*", default=[], help="only these cases")
    parser.add_argument("--workers", type=int, default=1, help="processes at once")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of one question")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to which answers are added")
    options = parser.parse_args()
    cases = all_cases(options.half, options.names)
    if options.list:
        sys.stdout.write(listed(cases) + "\n")
    failed = 0
    if options.check:
        torch.set_num_threads(1)
        for case in cases:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                (row,) = checked([case])
            failed += not row.passed
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
        sys.stdout.write(f"{len(cases) - failed} of {len(cases)} cases hold\n")
    for diagnoser in options.diagnoser:
        answers = measured(diagnoser, cases, options.out, options.workers, options.seconds)
        sys.stdout.write(f"{diagnoser}\n{table({case.name: case for case in cases}, answers)}\n")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
