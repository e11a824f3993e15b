"""Run the benchmark of a CUDA card: `python -m benchmarks.card` in the root of the repository."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from inspect import getdoc

import pandas as pd

from benchmarks.card.measure import measure_card
from benchmarks.card.settings import MODES, PARTS, CardBench

# Columns with one value in all rows of a part.
SHARED = ["device", "torch", "driver", "data"]


def main(arguments: Sequence[str] | None = None, kind: type[CardBench] = CardBench) -> None:
    """Measure, and print a table for each part, or with ``--json`` the rows."""
    parser = ArgumentParser(
        prog="python -m benchmarks.card",
        description=getdoc(kind),
        formatter_class=RawDescriptionHelpFormatter,
    )
    add, default = parser.add_argument, kind()
    several: dict[str, dict[str, object]] = {
        "parts": {"choices": PARTS},
        "modes": {"choices": MODES},
        "batch_sizes": {"type": int},
        "trained": {},
    }
    for name, options in several.items():
        add(f"--{name.replace('_', '-')}", nargs="+", default=getattr(default, name), **options)  # type: ignore[arg-type]
    for name in ("image_size", "rounds", "limit", "epochs"):
        add(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name), help="default: %(default)s")
    add("--data-root", help="folder of CIFAR-10")
    add("--device", default=default.device)
    add("--json", action="store_true", help="print the rows as JSON")
    flags = vars(parser.parse_args(arguments))
    as_json = flags.pop("json")
    try:
        table = measure_card(kind(**flags))
    except ValueError as error:
        parser.error(str(error))
    if as_json:
        sys.stdout.write(f"{json.dumps(table.to_dict('records'), indent=2)}\n")
        return
    for part, rows in table.groupby("part", sort=False):
        sys.stdout.write(f"{part_text(str(part), rows)}\n\n")


def part_text(part: str, rows: pd.DataFrame) -> str:
    """Return the table of a part: its filled columns, with the columns of `SHARED` in its title."""
    filled = rows.dropna(axis="columns", how="all")
    shared = [name for name in SHARED if name in filled]
    table = filled.drop(columns=["part", *shared]).fillna("").to_string(index=False, float_format="{:.3f}".format)
    return f"{part}: {', '.join(map(str, filled[shared].iloc[0]))}\n{table}"


if __name__ == "__main__":
    main()
