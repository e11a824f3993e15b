"""What the commands about sweeps share: the files, the laboratory's place, and the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser, Namespace

from normless.cli.laboratory import add_state_arguments
from normless.output import add_json_flag

if TYPE_CHECKING:
    from normless.sweeps import Sweep

OUT = Path("normless-sweeps")


def add_sweep_arguments(parser: ArgumentParser, *, several: bool = False) -> None:
    """Add the file or files of sweeps, where their runs are, the metrics, and ``--json``."""
    if several:
        parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="the sweeps, as YAML")
    else:
        parser.add_argument("file", type=Path, metavar="FILE", help="the sweep, as YAML")
    add_state_arguments(parser, OUT)
    parser.add_argument(
        "--metrics",
        type=str,
        nargs="+",
        default=["test_accuracy"],
        help="columns of the table of runs; the rates are extended where the optimum of one lies at their end",
    )
    add_json_flag(parser)


def sweep_of(path: Path, namespace: Namespace) -> Sweep:
    """The sweep in a file.

    Raises:
        SweepError: the file does not describe one.
        ValueError: a metric is no column of the table of runs.
    """
    from normless.sweeps import METRICS, Sweep

    unknown = [name for name in namespace.metrics if name not in METRICS]
    if unknown:
        raise ValueError(f"There is no metric {', '.join(unknown)}; there are {', '.join(METRICS)}.")
    return Sweep.from_yaml(path)
