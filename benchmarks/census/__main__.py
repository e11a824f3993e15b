"""Run the census: `python -m benchmarks.census` in the root of the repository; a second run resumes the first."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

from benchmarks.census.measure import CensusBench, measure_census
from benchmarks.census.networks import tables
from normless.errors import MissingExtraError


def main() -> None:
    """Examine the networks that have no row yet and print a row per package."""
    parser = ArgumentParser(prog="python -m benchmarks.census", description=measure_census.__doc__)
    add, default = parser.add_argument, CensusBench()
    add("--packages", nargs="+", choices=tables(), metavar="PACKAGE", help=f"of {', '.join(tables())}; default: all")
    add("--count", type=int, help="networks of each package, evenly spaced in its table; default: all")
    add("--limit", type=int, default=default.limit, help="seconds that a network may take; default: %(default)s")
    add("--workers", type=int, help="processes of one thread each; default: one per core")
    add("--seed", type=int, default=default.seed, help="of weights and inputs; default: %(default)s")
    add("--out", type=Path, default=default.out, help="folder of census.csv and census.md; default: %(default)s")
    arguments = parser.parse_args()
    for name in ("count", "limit", "workers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"Expected --{name} to be 1 or more, got {value}.")
    try:
        table = measure_census(CensusBench(**vars(arguments)))
    except MissingExtraError as error:
        parser.error(str(error))
    sys.stdout.write(f"{table.to_string(index=False)}\n")


if __name__ == "__main__":
    main()
