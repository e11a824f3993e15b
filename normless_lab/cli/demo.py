"""``normless demo``: the sweep of the demo, its page, and the signal of its deepest networks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag
from normless_lab.cli.sweep import run_sweep
from normless_lab.demo import DEMO


def add_arguments(parser: ArgumentParser) -> None:
    """Add the place of the runs, the processes and the device."""
    parser.add_argument("--out", type=Path, default=Path("normless-demo"), help="folder of the runs and the page")
    parser.add_argument("--workers", type=int | None, default=None, help="processes; one per core if left out")
    parser.add_argument("--device", type=str, default="cpu", help="as of normless train")
    parser.add_argument("--print", action="store_true", help="print the sweep, to change and run it; train nothing")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Run the sweep and write its page; return 1 if a run failed."""
    if namespace.print:
        sys.stdout.write(DEMO.read_text("utf-8"))
        return 0
    from normless_lab.demo.signal import signal_figure
    from normless_lab.sweeps import Sweep

    sweep = Sweep.from_yaml(DEMO)
    sweep = replace(sweep, base={**sweep.base, "device": namespace.device})
    for name, value in {"file": DEMO, "db": None, "metrics": ["test_accuracy"], "page": True}.items():
        namespace[name] = value
    return run_sweep(sweep, namespace, signal_figure)
