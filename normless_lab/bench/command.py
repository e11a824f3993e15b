"""`normless bench WHAT`: the speed claims from the command line."""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from itertools import groupby
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from normless.cli import add_json_flag, check_names, print_json
from normless_lab.process import available_cores


class Benchmark(NamedTuple):
    """A benchmark: its title and summary, its dataclass and function in `normless_lab.bench`, and a line of setup.

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
LISTS: Mapping[str, dict[str, Any]] = _STATED["lists"]
TOGETHER: list[dict[str, Any]] = _STATED["all"]
ALL = "all"
WIDTH = 200
# Columns that are the same in all rows of a part, which its title says.
SHARED = ("device", "torch", "driver", "data")
COLUMNS = ("row", "ratio", "lowest", "highest", "aim", "result")
HOW = ("runs", "workers", "limit", "rounds")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes; needs no torch."""
    several = f"{ALL}: every benchmark that takes minutes, each in a process of its own"
    texts = [*(f"{name}: {one.summary}" for name, one in BENCHMARKS.items()), several]
    parser.add_argument("what", choices=[*BENCHMARKS, ALL], help="\n".join(texts))
    what, how = parser.add_argument_group("what is measured"), parser.add_argument_group("how it is measured")
    for name, text in NUMBERS.items():
        (how if name in HOW else what).add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=text)
    for name, stated in LISTS.items():
        options = {**stated, "type": int if stated.get("type") == "int" else str}
        what.add_argument(f"--{name.replace('_', '-')}", nargs="+", default=None, **options)
    what.add_argument("--data-root", default=None, help="card: folder of CIFAR-10; the usual place if left out")
    parser.add_argument("--out", type=Path, default=None, help="scale: the figure, SVG or PNG")
    how.add_argument("--device", default=None, help="as torch names it; step, inference, memory: cpu, card: cuda")
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    check_names(vars(arguments))
    flags = {name: value for name, value in vars(arguments).items() if value is not None}
    for name in ("batch_size", "rounds", "runs", "workers", "limit", "epochs"):
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
        for (what, setting, to), some in groupby(rows, itemgetter("benchmark", "setting", "to")):
            table = [*some]
            columns = [name for name in COLUMNS if any(row[name] is not None for row in table)]
            shown = [{name: row[name] for name in columns} for row in table]
            _print(f"{what}, as a ratio to {to}: {setting}", shown)
    elif "part" in rows[0]:
        sys.stdout.write(f"{title}: {setup}\n")
        for part, some in groupby(sorted(rows, key=_order_of_parts(rows)), itemgetter("part")):
            _print_part(part, [*some])
    else:
        _print(f"{title}: {setup}", rows)
    return 0


def _order_of_parts(rows: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], int]:
    """The key by which rows are sorted into their parts, in the order in which these first appear."""
    parts = [*dict.fromkeys(row["part"] for row in rows)]
    return lambda row: parts.index(row["part"])


def _print_part(part: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of a part: the columns in which a row has a value; what is the same in all rows is in the title."""
    titles = [str(rows[0][name]) for name in SHARED if rows[0].get(name) is not None]
    columns = [
        name for name in rows[0] if name not in ("part", *SHARED) and any(row[name] is not None for row in rows)
    ]
    _print(f"{part}: {', '.join(titles)}", [{name: row[name] for name in columns} for row in rows])


def _print(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table with a column for each value of a row."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console = Console()
    if not console.is_terminal:
        # A file or a pipe has no width.
        console.width = max(console.width, WIDTH)
    console.print(table)


def _settings(what: str, flags: Mapping[str, Any]) -> Any:
    """What a benchmark is to measure; flags that it has no attribute for are ignored."""
    from normless_lab import bench

    kind = getattr(bench, BENCHMARKS[what].settings)
    return kind(**{field.name: flags[field.name] for field in fields(kind) if field.name in flags})


def _setup(what: str, settings: Any) -> str:
    """The same in words."""
    return BENCHMARKS[what].setup.format(bench=settings)


def _measured(what: str, settings: Any) -> list[dict[str, Any]]:
    """The rows of a benchmark's table."""
    from normless_lab import bench

    table = getattr(bench, BENCHMARKS[what].measure)(settings)
    return [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False)]


def _all_rows(flags: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each of every benchmark's: its ratio, what that is to, what is aimed at and whether it is reached."""
    for stated in TOGETHER:
        settings = _settings(stated["what"], {**flags, **stated.get("with", {})})
        setup = _setup(stated["what"], settings)
        # A process of its own, so that none is faster or slower by the memory that another has left.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            measured = pool.submit(_measured, stated["what"], settings).result()
        bars = stated["bars"]
        for row in measured:
            name = ", ".join(value for value in row.values() if isinstance(value, str))
            ratios = {part: row.get(part) for part in ("ratio", "lowest", "highest")}
            aim, ratio = bars.get(name, bars.get(row.get("task"))), row.get("ratio")
            reached = None if aim is None else ratio >= aim if stated.get("at_least") else ratio <= aim
            # The tables come at the end, after minutes; a run that is stopped earlier has shown what it measured.
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
