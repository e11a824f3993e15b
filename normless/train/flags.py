"""The arguments of the commands that carry out a run: a flag for every setting, and where the run goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import docstring_parser
from jsonargparse import ArgumentParser, Namespace

from normless.output import add_json_flag, print_json
from normless.train.settings import Settings

if TYPE_CHECKING:
    from normless.probes import RideAlong
    from normless.train.report import Report

Config = TypeVar("Config", bound=Settings)
SomeReport = TypeVar("SomeReport", bound="Report")


def add_run_arguments(parser: ArgumentParser, kind: type[Settings], directories: str) -> None:
    """Add a flag for every setting, the YAML file that may set them, and where the run goes.

    Args:
        parser: of the command.
        kind: of the configuration.
        directories: the pattern of the default directory, in words.
    """
    parser.add_argument(
        "--config",
        action="config",
        help="YAML file with these settings, such as the config.yaml of a run; flags after it win",
    )
    hints = get_type_hints(kind)
    described = docstring_parser.parse(kind.__doc__ or "").params
    meanings = {parameter.arg_name: parameter.description for parameter in described}
    for field in fields(kind):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=hints[field.name],
            default=field.default,
            help=(meanings[field.name] or "").rstrip(".").replace("%", "%%"),
        )
    parser.add_argument(
        "--out",
        type=Path | None,
        default=None,
        help=f"directory of the run, which goes on if it was interrupted; {directories} if null",
    )
    parser.add_argument(
        "--probes",
        type=str,
        nargs="+",
        default=None,
        help="measure these along the way, as signal or gradients; tables go to probes/ in the run's directory",
    )
    parser.add_argument("--probe-every", type=int, default=100, help="at the first step and every so many after it")
    parser.add_argument("--restart", action="store_true", help="remove the run that the directory holds first")
    add_json_flag(parser)


def config_of(namespace: Namespace, kind: type[Config]) -> Config:
    """The configuration that the arguments describe."""
    return kind(**{field.name: namespace[field.name] for field in fields(kind)})


def directory_named(data: str, scheme: str, config: Settings) -> Path:
    """`runs/DATA-SCHEME-HASH`: the same settings find the same run again."""
    names = (text.partition("(")[0].strip() for text in (data, scheme))
    return Path("runs") / "-".join([*names, config.hash[:10]])


def ride_along_of(namespace: Namespace) -> RideAlong | None:
    """The probes that the arguments name, or None."""
    if namespace.probes is None:
        return None
    from normless.probes import RideAlong, every

    return RideAlong(tuple(namespace.probes), every(namespace.probe_every))


def run_with_progress(
    namespace: Namespace,
    train: Callable[..., SomeReport],
    config: Config,
    directory: Path,
    show: Callable[[Config, SomeReport], dict[str, str]],
) -> None:
    """Carry out a run with a progress bar on standard error, and print its result on standard output.

    Only the first of several processes shows anything.

    Args:
        namespace: the arguments of the command, of which how to run and to print are taken.
        train: carries out a run, given its configuration and directory.
        config: of the run.
        directory: of the run.
        show: the result for a person: what stands in each line, by its title. With `--json` it is one JSON object,
            the result's fields and `directory`.
    """
    from normless.train.progress import ProgressBar

    how = {"resume": not namespace.restart, "ride_along": ride_along_of(namespace)}
    if os.environ.get("RANK", "0") != "0":
        train(config, directory, **how)
        return
    with ProgressBar() as bar:
        result = train(config, directory, listeners=[bar], **how)
    if namespace.json:
        print_json(result.to_dict() | {"directory": str(directory)})
        return

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, value in (show(config, result) | {"directory": str(directory)}).items():
        table.add_row(f"[bold]{name}", value)
    Console(soft_wrap=True, highlight=False).print(table)


def outcome_in_words(result: Any) -> str:
    """The outcome, with the step at which a run diverged."""
    if result.diverged_step is None:
        return str(result.outcome)
    return f"{result.outcome} in epoch {result.diverged_epoch}, at step {result.diverged_step}"
