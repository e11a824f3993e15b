"""`normless bench WHAT`: the speed claims from the command line."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import yaml

from normless.process import add_json_flag, print_json


class Benchmark(NamedTuple):
    """A benchmark: its title and summary, its dataclass and function in `normless.bench`, and a line of setup.

    The line is a template of the dataclass' attributes.
    """

    title: str
    summary: str
    settings: str
    measure: str
    setup: str


_STATED = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text("utf-8"))
BENCHMARKS = {name: Benchmark(**stated) for name, stated in _STATED["benchmarks"].items()}
NUMBERS: Mapping[str, str] = _STATED["numbers"]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes; needs no torch."""
    parser.add_argument(
        "what", choices=list(BENCHMARKS), help="; ".join(f"{name}: {one.summary}" for name, one in BENCHMARKS.items())
    )
    for name, text in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=text)
    parser.add_argument(
        "--networks", nargs="+", default=None, metavar="MODEL", help="map: the networks, ten of the zoos if left out"
    )
    parser.add_argument("--packages", nargs="+", default=None, help="census: the packages, all of them if left out")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="census: the folder of its rows and tables, census; scale: the SVG or PNG file of its figure",
    )
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    for name in ("batch_size", "rounds", "runs", "workers", "count", "limit"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"Expected --{name.replace('_', '-')} to be 1 or more, got {value}.")
    import torch
    from rich.console import Console
    from rich.table import Table

    from normless import bench

    benchmark = BENCHMARKS[arguments.what]
    kind = getattr(bench, benchmark.settings)
    flags = {field.name: getattr(arguments, field.name, None) for field in fields(kind)}
    settings = kind(**{name: value for name, value in flags.items() if value is not None})
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    setup = (
        f"{benchmark.setup.format(**vars(settings))}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"load average {load} before"
    )
    rows = getattr(bench, benchmark.measure)(settings).to_dict("records")
    if arguments.json:
        print_json({"setting": setup, "rows": rows})
        return 0
    table = Table(title=f"{benchmark.title}: {setup}")
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    return 0
