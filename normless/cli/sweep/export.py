"""``normless sweep export FILE TO``: the table of a sweep's finished runs, for other programs."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import laboratory_of
from normless.cli.sweep.arguments import add_sweep_arguments, sweep_of
from normless.output import print_json


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sweep, and the file to write."""
    add_sweep_arguments(parser)
    parser.add_argument("to", type=Path, metavar="TO", help="file to write, of name .parquet or .csv")
    parser.add_argument("--epochs", action="store_true", help="a row per finished epoch instead of one per run")


def run(namespace: Namespace) -> int:
    """Write the table; runs that are missing are told."""
    to: Path = namespace.to
    if to.suffix not in (".parquet", ".csv"):
        raise ValueError(f"Expected a file of name .parquet or .csv to write to, got {to}.")
    sweep = sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        result = lab.read(sweep, metrics=namespace.metrics)
    table = result.epochs if namespace.epochs else result.runs
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.suffix == ".csv":
        table.to_csv(to, index=False)
    else:
        table.to_parquet(to, index=False)
    facts = {"name": sweep.name, "file": str(to), "rows": len(table), "missing": result.missing}
    if namespace.json:
        print_json(facts)
    else:
        missing = f"; {result.missing} runs of the sweep are missing" if result.missing else ""
        sys.stdout.write(f"wrote {to}: {len(table)} {'epochs' if namespace.epochs else 'runs'}{missing}\n")
    return 0
