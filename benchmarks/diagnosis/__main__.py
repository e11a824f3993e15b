"""Run the benchmark of diagnosis: `python -m benchmarks.diagnosis` in the root of the repository."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from inspect import getdoc
from pathlib import Path

from benchmarks.diagnosis.cases import CASES
from benchmarks.diagnosis.measure import DiagnosisBench, measure_diagnosis


def main() -> None:
    """Diagnose the cases and print a row for those seen, those kept aside, and all."""
    parser = ArgumentParser(
        prog="python -m benchmarks.diagnosis",
        description=getdoc(measure_diagnosis),
        formatter_class=RawDescriptionHelpFormatter,
    )
    add, steps = parser.add_argument, DiagnosisBench().trial_steps
    add("--names", nargs="+", choices=CASES, metavar="CASE", help="cases to diagnose; default: all")
    add("--trial-steps", type=int, default=steps, help="as in nl.diagnose; default: %(default)s")
    add("--out", type=Path, help="folder of diagnosis.jsonl, whose cases are not run again; default: nothing is kept")
    sys.stdout.write(f"{measure_diagnosis(DiagnosisBench(**vars(parser.parse_args()))).to_string(index=False)}\n")


if __name__ == "__main__":
    main()
