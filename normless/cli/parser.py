"""Parsing the command line: only the module of the chosen command is imported."""

from __future__ import annotations

import sys
from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from textwrap import dedent
from typing import NamedTuple

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from normless.cli.commands import COMMANDS
from normless.errors import NormlessError


class CommandLineError(NormlessError):
    """The words of the command line cannot be read; the message says which and where to look."""


class Implementation(NamedTuple):
    """A command that shares its module with others."""

    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Shows types and defaults, and leaves the lines of descriptions and examples as they are."""


def main_help() -> str:
    """What ``normless --help`` prints: the table of commands."""
    return dedent(
        """\
        usage: normless COMMAND [options]

        Train deep residual networks with and without normalization, and see why one trains.

        commands:
        {commands}

        options:
          -h, --help  show this help, or that of a command: normless COMMAND --help
          --version   show the version

        example:
          normless demo
        """
    ).format(commands=_table(COMMANDS))


def group_help(group: str) -> str:
    """What ``normless GROUP --help`` prints: the commands of a group, such as those of a sweep."""
    names = [name for name in COMMANDS if _group_of(name) == group]
    return dedent(
        """\
        usage: normless {group} COMMAND [options]

        commands:
        {commands}

        options:
          -h, --help  show this help, or that of a command: normless {first} --help

        example:
          {example}
        """
    ).format(group=group, commands=_table(names), first=names[0], example=COMMANDS[names[0]].example)


def _table(names: Iterable[str]) -> str:
    listed = list(names)
    width = max(map(len, listed)) + 2
    return "\n".join(f"  {name:<{width}}{COMMANDS[name].help}" for name in listed)


def _group_of(name: str) -> str | None:
    """The first of a command's two words; None of a command of one word."""
    first, _, second = name.partition(" ")
    return first if second else None


def command_parser(name: str) -> ArgumentParser:
    """The parser of one command with the arguments that its module adds."""
    command = COMMANDS[name]
    parser = ArgumentParser(
        prog=f"normless {name}",
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        epilog=f"example:\n  {command.example}",
        formatter_class=HelpFormatter,
        exit_on_error=False,
    )
    command.implementation().add_arguments(parser)
    return parser


def parse(words: Sequence[str]) -> tuple[Callable[[Namespace], int], Namespace]:
    """The function that runs the chosen command, and its arguments.

    SystemExit says that help has been printed, on request or because a group's command is missing.
    """
    name, rest = _command(words)
    parser = command_parser(name)
    try:
        namespace = parser.parse_args(rest)
    except ArgumentError as error:
        raise CommandLineError(f"{str(error).rstrip('.')}; see normless {name} --help.") from error
    return COMMANDS[name].implementation().run, namespace


def _command(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The name of the command that words begin with, and the words after it."""
    groups = {_group_of(name) for name in COMMANDS}
    length = 2 if words[0] in groups else 1
    if length == 2 and (len(words) == 1 or words[1] in ("-h", "--help")):
        sys.stdout.write(group_help(words[0]))
        raise SystemExit(0 if len(words) > 1 else 2)
    name = " ".join(words[:length])
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        meant = f"; did you mean {close[0]}?" if close else f": it is one of {', '.join(COMMANDS)}."
        raise CommandLineError(f"{name!r} is no command{meant}")
    return name, words[length:]
