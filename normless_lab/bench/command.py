"""``normless bench``: the speed claims, measured."""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from itertools import groupby
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from normless.cli import add_json_flag, check_names, print_json, terminal_width
from normless_lab.process import available_cores


class Benchmark(NamedTuple):
    """A benchmark: title, summary, names of its dataclass and function in `normless_lab.bench`, and its setup.

    The setup is a template with the fields of the dataclass, as in `{bench.rounds}`.
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
NETWORKS = "conversion, map: networks; default: some of timm, torchvision and transformers"
COLUMNS = ("row", "ratio", "lowest", "highest", "aim", "result")
HOW = ("runs", "workers", "rounds")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    several = f"{ALL}: every benchmark that takes minutes, each in a new process"
    texts = [*(f"{name}: {benchmark.summary}" for name, benchmark in BENCHMARKS.items()), several]
    parser.add_argument("what", choices=[*BENCHMARKS, ALL], help="\n".join(texts))
    what, how = parser.add_argument_group("what is measured"), parser.add_argument_group("how it is measured")
    for name, text in NUMBERS.items():
        (how if name in HOW else what).add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=text)
    what.add_argument("--networks", nargs="+", default=None, metavar="MODEL", help=NETWORKS)
    parser.add_argument("--out", type=Path, default=None, help="scale: file of the figure, SVG or PNG")
    how.add_argument("--device", default=None, help="step, inference, memory: name of a torch device; default: cpu")
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    check_names(vars(arguments))
    flags = {name: value for name, value in vars(arguments).items() if value is not None}
    for name in ("batch_size", "rounds", "runs", "workers", "epochs"):
        if flags.get(name, 1) < 1:
            raise ValueError(f"Expected --{name.replace('_', '-')} to be 1 or more, got {flags[name]}.")
    if arguments.what == ALL:
        title, setup, rows = "Every benchmark that takes minutes", _machine(), [*_all_rows(flags)]
    else:
        settings = _settings(arguments.what, flags)
        title, setup = BENCHMARKS[arguments.what].title, f"{_setup(arguments.what, settings)}, {_machine()}"
        rows = _measured(arguments.what, settings)
    if arguments.json:
        print_json({"setting": setup, "rows": rows})
    elif arguments.what == ALL:
        sys.stdout.write(f"{title}: {setup}\n")
        for (what, setting, to), group in groupby(rows, itemgetter("benchmark", "setting", "to")):
            table = [*group]
            columns = [name for name in COLUMNS if any(row[name] is not None for row in table)]
            shown = [{name: row[name] for name in columns} for row in table]
            _print(f"{what}, as a ratio to {to}: {setting}", shown)
    else:
        _print(f"{title}: {setup}", rows)
    return 0


def _print(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a column for each value of a row."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console(width=terminal_width()).print(table)


def _settings(what: str, flags: Mapping[str, Any]) -> Any:
    """Return the settings of a benchmark; flags without a field are ignored."""
    from normless_lab import bench

    kind = getattr(bench, BENCHMARKS[what].settings)
    return kind(**{field.name: flags[field.name] for field in fields(kind) if field.name in flags})


def _setup(what: str, settings: Any) -> str:
    """Return the settings in words."""
    return BENCHMARKS[what].setup.format(bench=settings)


def _measured(what: str, settings: Any) -> list[dict[str, Any]]:
    """Return the rows of a benchmark's table."""
    from normless_lab import bench

    table = getattr(bench, BENCHMARKS[what].measure)(settings)
    return [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False)]


def _all_rows(flags: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each row of every benchmark: its ratio, the reference, the aim, and whether that is reached."""
    for stated in TOGETHER:
        settings = _settings(stated["what"], {**flags, **stated.get("with", {})})
        setup = _setup(stated["what"], settings)
        # In a new process, so that the memory of earlier benchmarks has no effect.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            measured = pool.submit(_measured, stated["what"], settings).result()
        bars = stated["bars"]
        for row in measured:
            name = ", ".join(value for value in row.values() if isinstance(value, str))
            ratios = {part: row.get(part) for part in ("ratio", "lowest", "highest")}
            aim, ratio = bars.get(name, bars.get(row.get("task"))), row.get("ratio")
            reached = None if aim is None else ratio >= aim if stated.get("at_least") else ratio <= aim
            # Tables are printed after minutes; an interrupted run has shown its measurements.
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


def _machine() -> str:
    """Return processor, cores, threads, torch and load of this machine."""
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
