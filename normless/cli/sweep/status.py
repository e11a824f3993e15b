"""``normless sweep status FILE``: where a sweep stands, again and again on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import laboratory_of
from normless.cli.sweep.arguments import add_sweep_arguments, sweep_of
from normless.output import print_json

if TYPE_CHECKING:
    from normless.sweeps import Laboratory, Sweep

SECONDS = 2.0


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sweep, and how often to look."""
    add_sweep_arguments(parser)
    parser.add_argument("--once", action="store_true", help="look once, as is done where there is no terminal")


def run(namespace: Namespace) -> int:
    """Show the status: once, or until every run is finished or the user has seen enough."""
    from rich.console import Console

    from normless.cli.sweep.status_table import status_table
    from normless.sweeps import sweep_status

    sweep = sweep_of(namespace.file, namespace)
    with laboratory_of(namespace) as lab:
        if namespace.json:
            print_json(sweep_status(lab, sweep, namespace.metrics).to_dict())
            return 0
        console = Console()
        if namespace.once or not console.is_terminal:
            console.print(status_table(sweep_status(lab, sweep, namespace.metrics)))
            return 0
        _watch(lab, sweep, namespace.metrics)
    return 0


def _watch(lab: Laboratory, sweep: Sweep, metrics: list[str]) -> None:
    """Draw the status again every few seconds."""
    from rich.live import Live

    from normless.cli.sweep.status_table import status_table
    from normless.sweeps import sweep_status

    status = sweep_status(lab, sweep, metrics)
    with Live(status_table(status), auto_refresh=False) as live:
        while status.finished < status.wanted:
            time.sleep(SECONDS)
            status = sweep_status(lab, sweep, metrics)
            live.update(status_table(status), refresh=True)
