"""`normless bench WHAT`: the speed claims from the command line."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from normless.output import add_json_flag, print_json


class Benchmark(NamedTuple):
    """A benchmark: its title and summary, its dataclass and function in `normless.bench`, and a line of setup.

    The line is a template of the dataclass' attributes.
    """

    title: str
    summary: str
    settings: str
    measure: str
    setup: str


IMAGES = "{batch_size} images of {image_size}×{image_size}, {rounds} rounds"
BENCHMARKS: Mapping[str, Benchmark] = {
    "step": Benchmark(
        "A training step relative to the network without norms",
        "a training step under each scheme, as a ratio to that of the network without norms",
        "StepBench",
        "measure_step",
        f"ResNet-{{depth}}, {IMAGES}",
    ),
    "map": Benchmark(
        "The residual map relative to torch.export alone, in seconds",
        "reading a network's residual map, as a ratio to the export that it needs",
        "MapBench",
        "measure_map",
        "two examples, eval mode, {rounds} rounds",
    ),
    "probe": Benchmark(
        "Probes of all layers relative to a plain pass forward and back",
        "measuring all layers, as a ratio to the plain pass that is watched, in seconds and memory",
        "ProbeBench",
        "measure_probes",
        f"ResNet-{{depth}} by {{scheme}}, {IMAGES}",
    ),
    "census": Benchmark(
        "Networks of other packages, mapped, converted and checked",
        "networks of other packages mapped, converted and checked, resumed where it ended; a CSV file and a table",
        "CensusBench",
        "measure_census",
        "seed {seed}, at most {limit} seconds each, in {out}",
    ),
    "sweep": Benchmark(
        "Runs by workers relative to one process",
        "runs by workers of one thread each, as a ratio to one process of as many threads",
        "SweepBench",
        "measure_sweep",
        "{runs} runs of {epochs} epochs on digits in minibatches of {batch_size}, {model}, {rounds} rounds",
    ),
}
# The flags that are numbers; one that a benchmark has no attribute for is ignored.
NUMBERS: Mapping[str, str] = {
    "depth": "step, probe: layers of the CIFAR ResNet, 110",
    "batch_size": "images per step; step, probe: 128, sweep: 32",
    "image_size": "step, probe: height and width in pixels, 32",
    "runs": "sweep: runs of a round, 8",
    "workers": "sweep, census: processes; one per core if left out",
    "count": "census: networks of each package, evenly spaced in its table; all if left out",
    "limit": "census: seconds that a network may take, 300",
    "seed": "census: of weights and inputs, 0",
    "rounds": "how often each is run, taken in turns; step: 10, map and probe: 5, sweep: 3",
}


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
    parser.add_argument("--out", type=Path, default=None, help="census: the folder of its rows and tables, census")
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
