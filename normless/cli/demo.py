"""``normless demo``: deep networks with and without normalization on the embedded data set."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.demo import DemoSettings
from normless.output import add_json_flag, print_json

if TYPE_CHECKING:
    from normless.demo import DemoResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add the settings a user may change."""
    defaults = DemoSettings
    parser.add_argument(
        "--depths", type=int, nargs="+", default=list(defaults.depths), help="depths in layers, each 6b + 4"
    )
    parser.add_argument(
        "--schemes", type=str, nargs="+", default=list(defaults.schemes), help="names of schemes, as skipinit"
    )
    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="passes over the data set per run")
    parser.add_argument(
        "--rates",
        "--rate",
        type=float,
        nargs="+",
        default=list(defaults.rates),
        help="learning rates that each scheme is tried at for an epoch; the best goes on",
    )
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size, help="examples per step")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of initialization, order and augmentation")
    parser.add_argument("--out", type=Path, default=defaults.out, help="folder for figures and page")
    workers = "processes that share the cores; one per core if left out"
    parser.add_argument("--workers", type=int, default=defaults.workers, help=workers)
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Run the demo; print its table and where its files are."""
    names = [field.name for field in fields(DemoSettings) if field.name in namespace]
    values: dict[str, Any] = {name: getattr(namespace, name) for name in names}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    settings = DemoSettings(**values)
    from normless.demo import run_demo

    result = run_demo(settings)
    if namespace.json:
        print_json(result.to_dict())
    else:
        _print(result)
    return 0


def _print(result: DemoResult) -> None:
    """The table of runs and the places of the files, for a person."""
    from rich.console import Console
    from rich.table import Table

    from normless.cli.network import OUTCOME_COLOURS
    from normless.demo import format_accuracy, format_rate

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("depth", "scheme", "best rate", "outcome", "test accuracy", "seconds per epoch"):
        table.add_column(name, justify="left" if name in ("scheme", "outcome") else "right")
    rows = result.runs.to_dict("records")
    for row, following in zip(rows, [*rows[1:], rows[-1]], strict=True):
        table.add_row(
            str(row["depth"]),
            row["scheme"],
            format_rate(row["rate"]),
            f"[{OUTCOME_COLOURS[row['outcome']]}]{row['outcome']}[/]",
            format_accuracy(row["test_accuracy"]),
            f"{row['seconds_per_epoch']:.2f}",
            end_section=row["depth"] != following["depth"],
        )
    console = Console(soft_wrap=True)
    console.print(table)
    for path in (*result.figures, result.report):
        console.print(f"wrote {path}", highlight=False, markup=False)
