"""`normless bench WHAT`: the speed claims from the command line."""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from normless.process import add_json_flag, available_cores, print_json

if TYPE_CHECKING:
    from pandas import DataFrame


class Benchmark(NamedTuple):
    """A benchmark: its title and summary, its dataclass and function in `normless.bench`, and a line of setup.

    The line is a template of the dataclass' attributes, `{bench.rounds}`.
    """

    title: str
    summary: str
    settings: str
    measure: str
    setup: str


_STATED = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text("utf-8"))
BENCHMARKS = {name: Benchmark(**stated) for name, stated in _STATED["benchmarks"].items()}
NUMBERS: Mapping[str, str] = _STATED["numbers"]
TOGETHER: list[dict[str, Any]] = _STATED["all"]
ALL = "all"
HOW = ("runs", "workers", "limit", "seed", "rounds")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes; needs no torch."""
    several = f"{ALL}: every benchmark that takes minutes, as one table"
    texts = [*(f"{name}: {one.summary}" for name, one in BENCHMARKS.items()), several]
    parser.add_argument("what", choices=[*BENCHMARKS, ALL], help="\n".join(texts))
    what, how = parser.add_argument_group("what is measured"), parser.add_argument_group("how it is measured")
    for name, text in NUMBERS.items():
        (how if name in HOW else what).add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=text)
    what.add_argument(
        "--networks", nargs="+", default=None, metavar="MODEL", help="map: the networks, ten of the zoos if left out"
    )
    what.add_argument("--packages", nargs="+", default=None, help="census: the packages, all of them if left out")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="census, diagnose: the folder of its rows, which a second run adds to; scale: the figure, SVG or PNG",
    )
    how.add_argument("--device", default=None, help="step, inference, memory: as torch names it, cpu")
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    flags = {name: value for name, value in vars(arguments).items() if value is not None}
    for name in ("batch_size", "rounds", "runs", "workers", "count", "limit"):
        if flags.get(name, 1) < 1:
            raise ValueError(f"Expected --{name.replace('_', '-')} to be 1 or more, got {flags[name]}.")
    from rich.console import Console
    from rich.table import Table

    if arguments.what == ALL:
        title, setup, rows = "Every benchmark that takes minutes", _machine(), [*_all_rows(flags)]
    else:
        setup, measured = _measured(arguments.what, flags)
        title, setup, rows = BENCHMARKS[arguments.what].title, f"{setup}, {_machine()}", _records(measured)
    if arguments.json:
        print_json({"setting": setup, "rows": rows})
        return 0
    table = Table(title=f"{title}: {setup}")
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console().print(table)
    return 0


def _measured(what: str, flags: Mapping[str, Any]) -> tuple[str, DataFrame]:
    """What a benchmark ran, in words, and its table; flags that it has no attribute for are ignored."""
    from normless import bench

    benchmark = BENCHMARKS[what]
    kind = getattr(bench, benchmark.settings)
    settings = kind(**{field.name: flags[field.name] for field in fields(kind) if field.name in flags})
    return benchmark.setup.format(bench=settings), getattr(bench, benchmark.measure)(settings)


def _all_rows(flags: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each of every benchmark's: its ratio, what that is to, what is aimed at and whether it is reached."""
    for stated in TOGETHER:
        setup, table = _measured(stated["what"], {**flags, **stated.get("with", {})})
        for row in _records(table):
            name = ", ".join(value for value in row.values() if isinstance(value, str))
            ratios = {part: row.get(part) for part in ("ratio", "lowest", "highest")}
            aim, ratio = stated["bars"].get(name), row.get("ratio")
            reached = None if aim is None else ratio >= aim if stated.get("at_least") else ratio <= aim
            # The table comes at the end, after minutes; a run that is stopped earlier has shown what it measured.
            sys.stderr.write(f"{stated['what']}: {setup}: {name}: {', '.join(map(_cell, ratios.values()))}\n")
            yield {
                "benchmark": stated["what"],
                "setting": setup,
                "row": name,
                **ratios,
                "to": stated["to"],
                "aim": aim,
                "result": None if reached is None else "pass" if reached else "miss",
            }


def _records(table: DataFrame) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False)]


def _machine() -> str:
    """Processor, cores, threads, torch and load of this machine."""
    import torch

    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return (
        f"{next(iter(models), platform.processor() or platform.machine())}, {available_cores()} cores, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, load average {load}"
    )


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
