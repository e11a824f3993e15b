"""``normless train``, and the commands of other kinds of runs: one run, from YAML and flags."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag, answer, check_names, status_line
from normless.errors import NormlessError
from normless.spec import RUN_FILE
from normless_lab.train._config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from normless_lab.train._result import TrainingResult


# Aliases of flags.
ALIASES = {"rate": ("--lr",), "rates": ("--rate",)}


@dataclass(frozen=True)
class TrainCommand:
    """The command that executes the runs with configurations of one type."""

    config_type: type[RunConfig]
    asks: bool = False
    """Whether the command asks for a model if nothing is set, rather than train the default network."""

    COMMON: ClassVar = frozenset(
        (
            *("config", "model", "scheme", "data", "data_root", "epochs", "rate", "optimizer", "weight_decay"),
            *("batch_size", "batch_tokens", "schedule", "seed", "device", "precision", "out", "probes", "watch"),
            *("restart", "json"),
        )
    )
    """The flags of its help; the others are in that of ``--help-all``."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add a flag for every setting, the YAML file that may set them, and where the run goes."""
        parser.add_argument(
            "--config",
            action="config",
            help="YAML file with these settings, such as the config.yaml of a run; flags after it win",
        )
        # jsonargparse adds it to --config.
        parser._option_string_actions["--print_config"].help = (
            "print all settings as YAML, those of the other flags too, and exit; with =skip_default those alone that "
            "differ from their defaults"
        )
        for title, members in groups_of_settings(self.config_type).items():
            add_flags(parser.add_argument_group(title), self.config_type, members)
        parser.set_defaults(model=_Default(parser.get_default("model")))
        self._add_run_arguments(parser.add_argument_group("run"))

    def _add_run_arguments(self, group: Any) -> None:
        """Add the flags that are not settings: the directory of the run, probes, loggers, checkpoints and limits."""
        group.add_argument(
            "--out",
            type=Path | None,
            default=None,
            help="directory of the run, which is resumed if it was interrupted; if left out that of the run whose "
            "config.yaml is the --config, else runs/DATA-SCHEME-HASH",
        )
        group.add_argument(
            "--probes",
            type=str,
            nargs="+",
            default=None,
            help="measure these along the way, as signal or gradients; tables go to probes/ in the run's directory",
        )
        group.add_argument(
            "--probe-every", type=int, default=100, help="at the first step and every so many after it"
        )
        group.add_argument(
            "--watch",
            action="store_true",
            help="warn of what goes wrong along the way; findings go to findings.json in the run's directory",
        )
        group.add_argument(
            "--logger",
            type=str,
            nargs="+",
            default=["tensorboard"],
            help="where curves, findings and figures go: tensorboard, csv, or FILE.py:NAME or MODULE:NAME with its "
            "arguments; several at once too",
        )
        group.add_argument(
            "--time-limit",
            type=str | None,
            default=None,
            help="save and stop after this time, as 90s, 10m or 1.5h, with exit code 75; the same command goes on",
        )
        group.add_argument(
            "--checkpoint-every",
            type=str | None,
            default=None,
            help="steps or time, as 500 or 10m, between two checkpoints within an epoch; at its end if left out",
        )
        group.add_argument(
            "--lengthen",
            action="store_true",
            help="go on with a run of fewer epochs though its schedule depends on their number",
        )
        group.add_argument(
            "--restart", action="store_true", help="move the run that the directory holds to former/ and start anew"
        )
        add_json_flag(group)

    def run(self, namespace: Namespace) -> int:
        """Execute the run that the arguments describe; prints its result. Every outcome is a success.

        Only the first of several processes prints: a progress bar on standard error, the result on standard output.
        A run that is stopped before its end is a `StoppedError`.
        """
        check_names(vars(namespace))
        config = self.config_type(**{field.name: namespace[field.name] for field in fields(self.config_type)})
        defaults: Any = self.config_type
        if self.asks and isinstance(namespace.model, _Default) and config == defaults() and not namespace.out:
            raise NormlessError(
                f"Choose the network to train by --model NAME or --config FILE.yaml; the default is {config.model}."
            )
        directory = namespace.out or _directory_of_config(namespace, config) or default_directory(config)
        with status_line("preparing the run"):
            from normless_lab.train._run_listener import ProgressBar
            from normless_lab.train._training_run import train

        carry_out: Any = train
        how: dict[str, Any] = {
            name: namespace[name] for name in ("time_limit", "checkpoint_every", "lengthen", "watch", "logger")
        }
        how["resume"] = not namespace.restart
        if namespace.probes is not None:
            from normless.probes import RideAlong, every

            how["ride_along"] = RideAlong(tuple(namespace.probes), every(namespace.probe_every))
        if os.environ.get("RANK", "0") != "0":
            carry_out(config, directory, **how)
            return 0
        with ProgressBar() as bar:
            result = carry_out(config, directory, listeners=[bar], **how)
        words = _in_words(config, result) | {"directory": str(directory)}
        width = max(map(len, words))
        text = "\n".join(f"{name:<{width}}  {value}" for name, value in words.items())
        return answer(namespace, result.to_dict() | {"directory": str(directory)}, text)


TRAIN = TrainCommand(TrainConfig, asks=True)


class _Default(str):
    """The text of a setting that neither a flag nor a file gave."""

    __slots__ = ()


# As `--print_config` writes it.
yaml.SafeDumper.add_representer(_Default, yaml.SafeDumper.represent_str)


def groups_of_settings(kind: type[RunConfig]) -> dict[str, list[str]]:
    """Return the settings under each title of the help, see `RunConfig.GROUPS`."""
    stated = [vars(base).get("GROUPS", {}) for base in reversed(kind.__mro__)]
    titles = {name: title for groups in stated for title, names in groups.items() for name in names}
    members: dict[str, list[str]] = {title: [] for groups in stated for title in groups}
    for field in fields(kind):
        members[titles.get(field.name, "optimization")].append(field.name)
    return members


def add_flags(parser: Any, kind: type[Any], names: Sequence[str]) -> None:
    """Add a flag for each of these fields of a dataclass to a parser or an argument group.

    A field with a tuple as its default takes several values.
    """
    hints, meanings = get_type_hints(kind), descriptions(kind)
    for name in names:
        flags = (f"--{name.replace('_', '-')}", *ALIASES.get(name, ()))
        meaning = " ".join(meanings[name].split()).rstrip(".").replace("%", "%%")
        for hint in (name for name in hints if "_" in name):
            meaning = re.sub(rf"\b{hint}\b(?!=)", f"--{hint.replace('_', '-')}", meaning)
        hint, default = hints[name], getattr(kind, name)
        if default is None:
            hint, meaning = hint | None, meaning.replace("if null", "if left out")
        if isinstance(default, tuple):
            parser.add_argument(*flags, type=get_args(hint)[0], nargs="+", default=list(default), help=meaning)
        else:
            parser.add_argument(*flags, type=hint, default=default, help=meaning)


def descriptions(kind: type[Any]) -> dict[str, str]:
    """Return the description of each setting, from the docstrings of a dataclass and its bases."""
    return {
        parameter.arg_name: parameter.description or ""
        for base in reversed(kind.__mro__)
        for parameter in docstring_parser.parse(base.__doc__ or "").params
    }


def _directory_of_config(namespace: Namespace, config: RunConfig) -> Path | None:
    """Return the folder of the run whose config.yaml ``--config`` names, if the settings are those of that run."""
    from normless_lab.process import read_yaml

    for file in namespace.config or ():
        path = Path(str(file))
        if path.name == RUN_FILE and (path.parent / "contents.json").is_file():
            former = type(config).from_dict(dict(read_yaml(path)))
            former = replace(former, epochs=config.epochs) if namespace.lengthen else former
            if former.hash_of_fields == config.hash_of_fields:
                return path.parent
    return None


def default_directory(config: RunConfig) -> Path:
    """`runs/DATA-SCHEME-HASH`: the same settings give the same directory."""
    from normless_lab.train._task import applied_scheme, saved_folder

    scheme = config.scheme if saved_folder(config.model) is None else applied_scheme(config)
    names = (text.partition("(")[0].strip() for text in (config.data, scheme))
    return Path("runs") / "-".join([*names, config.hash[:10]])


def _in_words(config: RunConfig, result: TrainingResult[Any]) -> dict[str, str]:
    """Return the result for a person, by title."""
    from normless_lab.train._task import applied_scheme

    outcome = str(result.outcome)
    if result.diverged_step is not None:
        outcome += f" in epoch {result.diverged_epoch}, at step {result.diverged_step}"
    return {
        "network": f"{config.model} with {applied_scheme(config)}",
        "data": result.data,
        "outcome": outcome,
        **result.metrics_in_words(),
        "epochs": f"{len(result.epochs)}, {result.seconds_per_epoch:.2f} s each",
        "computed": f"in {result.arithmetic}, on {result.device}",
        **({} if result.graph is None else {"steps as a CUDA graph": result.graph}),
    }
