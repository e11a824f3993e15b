"""From the words of the command line to the command they mean, whose module alone is imported."""

from __future__ import annotations

from argparse import ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from textwrap import dedent

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from normless.cli.commands import COMMANDS
from normless.errors import NormlessError


class CommandLineError(NormlessError):
    """The words of the command line cannot be read; the message says which and where to look."""


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Shows types and defaults, and leaves the lines of descriptions and examples as they are."""


def main_help() -> str:
    """What ``normless --help`` prints: the table of commands."""
    width = max(map(len, COMMANDS)) + 2
    commands = "\n".join(f"  {name:<{width}}{command.help}" for name, command in COMMANDS.items())
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
    ).format(commands=commands)


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
    import_module(command.module).add_arguments(parser)
    return parser


def parse(words: Sequence[str]) -> tuple[Callable[[Namespace], int], Namespace]:
    """The function that runs the chosen command, and its arguments.

    Raises:
        CommandLineError: the command is unknown, or its arguments cannot be read.
        SystemExit: help was asked for and has been printed.
    """
    name, *rest = words
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1)
        meant = f"; did you mean {close[0]}?" if close else f": it is one of {', '.join(COMMANDS)}."
        raise CommandLineError(f"{name!r} is no command{meant}")
    parser = command_parser(name)
    try:
        namespace = parser.parse_args(rest)
    except ArgumentError as error:
        raise CommandLineError(f"{str(error).rstrip('.')}; see normless {name} --help.") from error
    return import_module(COMMANDS[name].module).run, namespace
