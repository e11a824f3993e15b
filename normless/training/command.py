"""``normless train``: one run, from YAML and flags."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

import docstring_parser
from jsonargparse import ArgumentParser, Namespace

from normless.output import add_json_flag, print_json
from normless.training import config as config_module
from normless.training.config import TrainConfig

if TYPE_CHECKING:
    from normless.probes.ride_along import RideAlong
    from normless.training.result import RunResult


def add_arguments(parser: ArgumentParser) -> None:
    """Add a flag for every field of `TrainConfig`, the YAML file that may set them, and where the run goes."""
    parser.add_argument(
        "--config",
        action="config",
        help="YAML file with these settings, such as the config.yaml of a run; flags after it win",
    )
    hints = get_type_hints(TrainConfig, vars(config_module))
    described = docstring_parser.parse(TrainConfig.__doc__ or "").params
    meanings = {parameter.arg_name: parameter.description for parameter in described}
    for field in fields(TrainConfig):
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
        help="directory of the run, which goes on if it was interrupted; runs/DATA-SCHEME-HASH if null",
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


def run(namespace: Namespace) -> int:
    """Carry out the run that the arguments describe; prints its result. Every outcome is a success."""
    config = TrainConfig(**{field.name: namespace[field.name] for field in fields(TrainConfig)})
    directory = default_directory(config) if namespace.out is None else Path(namespace.out)
    ride_along = None
    if namespace.probes is not None:
        from normless.probes.ride_along import RideAlong, every

        ride_along = RideAlong(tuple(namespace.probes), every(namespace.probe_every))
    train_command(config, directory, resume=not namespace.restart, as_json=namespace.json, ride_along=ride_along)
    return 0


def train_command(
    config: TrainConfig,
    directory: Path,
    *,
    resume: bool = True,
    as_json: bool = False,
    ride_along: RideAlong | None = None,
) -> RunResult:
    """Train with a progress bar on standard error, and print the result on standard output.

    Args:
        config: of the run.
        directory: of the run.
        resume: go on with what the directory holds; else start over.
        as_json: print one JSON object, the fields of `RunResult` and `directory`, instead of a summary.
        ride_along: probes that measure along the way.
    """
    from normless.training.progress import ProgressBar
    from normless.training.run import train

    if os.environ.get("RANK", "0") != "0":
        return train(config, directory, resume=resume, ride_along=ride_along)
    with ProgressBar() as bar:
        result = train(config, directory, resume=resume, listeners=[bar], ride_along=ride_along)
    if as_json:
        print_json(result.to_dict() | {"directory": str(directory)})
    else:
        _print(config, result, directory)
    return result


def default_directory(config: TrainConfig) -> Path:
    """`runs/DATA-SCHEME-HASH`: the same settings find the same run again."""
    from normless.training.saved import applied_scheme, is_saved

    scheme = applied_scheme(config) if is_saved(config.model) else config.scheme
    names = (text.partition("(")[0].strip() for text in (config.data, scheme))
    return Path("runs") / "-".join([*names, config.hash[:10]])


def _print(config: TrainConfig, result: RunResult, directory: Path) -> None:
    """The result for a person."""
    from rich.console import Console
    from rich.table import Table

    from normless.training.saved import applied_scheme

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    rows = {
        "network": f"{config.model} with {applied_scheme(config)}",
        "data": result.data,
        "outcome": result.outcome,
    }
    if result.diverged_step is not None:
        rows["outcome"] += f" in epoch {result.diverged_epoch}, at step {result.diverged_step}"
    rows["test accuracy"] = f"{result.test_accuracy:.2%} (the best constant guess: {result.chance_accuracy:.2%})"
    if result.test_accuracy_top5 is not None:
        rows["among the top five"] = f"{result.test_accuracy_top5:.2%}"
    if result.epochs:
        last = result.epochs[-1]
        rows["training loss"] = f"{last.training_loss:.4f}, with the L2 term {last.training_loss_with_l2:.4f}"
    rows["epochs"] = f"{len(result.epochs)}, {result.seconds_per_epoch:.2f} s each"
    rows["directory"] = str(directory)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}", value)
    Console(soft_wrap=True, highlight=False).print(table)
