"""``normless sweep prune FILE…``: throw away what none of some sweeps asks for."""

from __future__ import annotations

import sys

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import laboratory_of
from normless.cli.sweep.arguments import add_sweep_arguments, sweep_of
from normless.output import print_json


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sweeps whose runs stay."""
    add_sweep_arguments(parser, several=True)
    parser.add_argument("--yes", action="store_true", help="throw it away; else it is only counted")


def run(namespace: Namespace) -> int:
    """Count what can go, and remove it if told to."""
    from normless.sweeps import prunable, prune

    sweeps = [sweep_of(path, namespace) for path in namespace.files]
    with laboratory_of(namespace) as lab:
        found = prunable(lab, sweeps, namespace.metrics)
        if namespace.yes:
            prune(lab, found)
    facts = {"rows": len(found.rows), "folders": [str(path) for path in found.folders], "removed": namespace.yes}
    if namespace.json:
        print_json(facts)
        return 0
    what = f"{len(found.rows)} finished runs and {len(found.folders)} folders of unfinished ones"
    said = "removed" if namespace.yes else "would go; --yes removes them"
    sys.stdout.write(f"{what} {said}\n")
    return 0
