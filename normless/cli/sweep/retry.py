"""``normless sweep retry FILE``: forget the failed runs of a sweep, and carry out what is then missing."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import laboratory_of
from normless.cli.sweep import run as sweep_run
from normless.cli.sweep.arguments import sweep_of


def add_arguments(parser: ArgumentParser) -> None:
    """Add what ``normless sweep run`` takes."""
    sweep_run.add_arguments(parser)


def run(namespace: Namespace) -> int:
    """Carry out the sweep again as far as it failed; 1 if a run failed anew."""
    sweep = sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        table = lab.read(sweep, metrics=namespace.metrics).runs
        failed = list(table.loc[table["outcome"] == "failed", "hash"])
        lab.state.remove(failed)
    sys.stderr.write(f"{sweep.name}: {len(failed)} failed runs are carried out again.\n")
    return sweep_run.carry_out(sweep, namespace)
