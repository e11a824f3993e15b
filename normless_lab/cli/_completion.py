"""``normless --completion SHELL``: a script by which a shell completes commands, flags, names and files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

from jsonargparse import ArgumentParser, Namespace

from normless.cli import ARGUMENTS, COMMANDS, add_json_flag, answer, help_of, is_task
from normless.errors import MissingExtraError
from normless.extras import import_extra
from normless.registry import TABLES

SHELLS = ("bash", "zsh")
# Texts that may be a file; a colon, as in the names of networks, separates words in bash.
FILES = ("model", "config")
_SUMMARY = 60


def add_arguments(parser: ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Print the script."""
    script = completion_script(namespace.shell)
    return answer(namespace, {"shell": namespace.shell, "script": script}, script.rstrip("\n"))


def completion_script(shell: str) -> str:
    """Return the script for a shell; flags of a command are omitted if its extra is not installed."""
    shtab = import_extra("lab", "Shell completion", "shtab")
    root = argparse.ArgumentParser(prog="normless")
    root.add_argument("--version", action="store_true", help="show the version")
    groups: dict[str, Any] = {"": root.add_subparsers()}
    for name in COMMANDS:
        if is_task(name) or name.startswith("-"):
            continue
        group, _, own = name.rpartition(".")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help=f"{group} …").add_subparsers()
        summary = _summary(help_of(name))
        _add_arguments(groups[group].add_parser(own, help=summary, description=summary), name, shtab)
    script: str = shtab.complete(root, shell)
    return script


def _add_arguments(parser: argparse.ArgumentParser, name: str, shtab: Any) -> None:
    """Add the arguments of a command to a parser of argparse's own, which shtab reads."""
    stated = ArgumentParser(exit_on_error=False, add_help=False)
    try:
        COMMANDS[name].implementation().add_arguments(stated)
    except MissingExtraError:
        return
    for action in stated._actions:
        if action.help == argparse.SUPPRESS:
            continue
        flags, help_text = action.option_strings or [action.dest], _summary(action.help or "")
        if action.nargs == 0:
            parser.add_argument(*flags, action="store_true", help=help_text)
            continue
        made: Any = parser.add_argument(*flags, nargs=action.nargs, help=help_text, choices=_choices(action))
        kind = getattr(action, "_typehint", action.type)
        if action.dest in FILES or Path in (kind, *get_args(kind)):
            made.complete = shtab.FILE


def _choices(action: argparse.Action) -> list[str] | None:
    """Return the possible values of an argument: those of its type, or the registered names."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if isinstance(action.metavar, str) and action.metavar.startswith("{"):
        return [choice for choice in action.metavar.strip("{}").split(",") if choice != "null"]
    table = ARGUMENTS.get(action.dest, "models")
    return None if table == "models" else list(TABLES[table])


def _summary(text: str) -> str:
    """The beginning of a help text, for one line of a menu; argparse reads % as the begin of a format."""
    first = text.partition(";")[0].partition(": ")[0].replace("%%", "%")
    return f"{first[:_SUMMARY].rstrip()}{'…' if len(first) > _SUMMARY else ''}".replace("%", "%%")
