"""``normless demo``: deep networks with and without normalization on the embedded data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, check_names, print_json
from normless_lab.demo import DemoSettings
from normless_lab.train.command import add_flags

if TYPE_CHECKING:
    from normless_lab.demo import DemoResult

# The settings that a user may change.
_TRAINED = ("depths", "schemes", "data", "epochs", "rates", "batch_size", "seed")
_MACHINE = ("workers", "device", "out")
_FLAGS = (*_TRAINED, *_MACHINE)


def add_arguments(parser: ArgumentParser) -> None:
    """Add a flag for each setting that a user may change."""
    add_flags(parser.add_argument_group("what is trained"), DemoSettings, _TRAINED)
    add_flags(parser.add_argument_group("machine"), DemoSettings, _MACHINE)
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Run the demo; print its table and where its files are."""
    check_names(vars(namespace))
    values: dict[str, Any] = {name: namespace[name] for name in _FLAGS}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    settings = DemoSettings(**values)
    from normless_lab.demo import run_demo

    result = run_demo(settings)
    if namespace.json:
        print_json(result.to_dict())
    else:
        _print(result)
    return 0


def _print(result: DemoResult) -> None:
    """Print the table of runs and the paths of the files."""
    from rich.console import Console
    from rich.text import Text

    from normless.cli.network import OUTCOME_COLOURS, table
    from normless_lab.demo.report import table_of_runs

    runs = table_of_runs(result.runs)
    rows = [[Text(cell, OUTCOME_COLOURS.get(cell, "")) for cell in row] for row in runs.rows]
    right = tuple(index for index, column in enumerate(runs.columns) if column.numeric)
    console = Console(soft_wrap=True)
    console.print(table([column.name for column in runs.columns], rows, right=right))
    for path in (*result.figures, result.report):
        console.print(f"wrote {path}", highlight=False, markup=False)
