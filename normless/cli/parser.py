"""Parse the command line, and import only the module of the chosen command."""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS, Action, ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader, set_loader
from yaml import YAMLError

from normless.cli.commands import COMMANDS, help_of
from normless.errors import NormlessError
from normless.registry import did_you_mean

_LOAD_YAML = get_loader("yaml")
_ANCHOR_AND_ALIAS = re.compile(r"&\w.*\*\w", re.DOTALL)


def main_help(group: str = "") -> str:
    """Return the text of ``normless --help``, or of ``normless GROUP --help`` for a group such as sweep."""
    names = [name for name in COMMANDS if not group or name.startswith(f"{group}.")]
    width = max(map(len, names)) + 2
    lines = [f"usage: normless {f'{group} ' if group else ''}COMMAND [options]", ""]
    if not group:
        lines += ["Train deep residual networks with and without normalization, and see why one trains.", ""]
    lines += ["commands:", *(f"  {_words(name):<{width}}{help_of(name)}" for name in names), "", "options:"]
    command = _words(names[0]) if group else "COMMAND"
    lines.append(f"  -h, --help  show this help; normless {command} --help shows the help of a command")
    if not group:
        lines.append("  --version   show the version")
        lines.append("  --debug     show the whole traceback of an error")
    return "\n".join([*lines, "", "example:", f"  {COMMANDS[names[0]].example}", ""])


def _words(name: str) -> str:
    """Return the name of a command as written on the command line."""
    return name.replace(".", " ")


def parse(words: Sequence[str]) -> tuple[Callable[[Namespace], int], Namespace]:
    """Return the function that runs the chosen command, and its arguments.

    SystemExit is raised after help was printed, on request or for a group without a command.
    """
    name, rest = command_of(words)
    command = COMMANDS[name]
    implementation = command.implementation()
    parser = ArgumentParser(
        prog=f"normless {_words(name)}",
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        epilog=f"example:\n  {command.example}",
        formatter_class=HelpFormatter,
        exit_on_error=False,
    )
    implementation.add_arguments(parser)
    _show(parser, getattr(implementation, "COMMON", ()), rest)
    set_loader("yaml", _without_aliases, (YAMLError, ValueError, TypeError, RecursionError))
    _check_paths(parser, rest)
    try:
        return implementation.run, parser.parse_args(rest)
    except ArgumentError as error:
        known = parser._option_string_actions
        raise NormlessError(f"{_sentence(str(error), rest, known)}; see normless {_words(name)} --help.") from error


def _show(parser: ArgumentParser, common: Collection[str], words: Sequence[str]) -> None:
    """Show the common flags of a command in its help, if it says which they are, in one sentence each.

    ``--help-all`` shows all flags, and all that there is to say of them.
    """
    if not common:
        return
    parser.add_argument("--help-all", action="help", default=SUPPRESS, help="show all flags, in full")
    for action in () if "--help-all" in words else parser._actions:
        is_shown = action.dest in (*common, "help", "help_all")
        action.help = (action.help or "").partition(". ")[0].partition("; ")[0] if is_shown else SUPPRESS


def _check_paths(parser: ArgumentParser, words: Sequence[str]) -> None:
    """Raise a NormlessError for an empty text as a path, as of an unset variable: it would be the current folder."""
    for action in parser._actions:
        kind = getattr(action, "_typehint", action.type)
        if Path in (kind, *get_args(kind)):
            empty = [flag for flag, value in pairwise(words) if flag in action.option_strings and value == ""]
            empty += [word[:-1] for word in words if word.endswith("=") and word[:-1] in action.option_strings]
            if empty or (not action.option_strings and "" in words):
                raise NormlessError(f"Expected a path as {empty[0] if empty else action.dest}, got an empty text.")


def interruption(words: Sequence[str]) -> str:
    """Return the sentence for a command that was interrupted, with the way to continue it."""
    name, _ = command_of(words)
    if not COMMANDS[name].resumes:
        return "interrupted."
    without = " without --restart" if "--restart" in words else ""
    return f"interrupted; the same command{without} continues from there."


def _sentence(message: str, words: Sequence[str], known: Collection[str]) -> str:
    """Return the message of the parser in one line, with a suggestion for an unknown flag."""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    meant = [did_you_mean(flag, known) for flag in flags if flag not in known]
    return " ".join(message.split()).rstrip(".") + "".join(f" ({text.strip()})" for text in meant if text)


def _without_aliases(text: str) -> Any:
    """Load YAML without aliases, which can stand for more values than fit in memory."""
    if _ANCHOR_AND_ALIAS.search(text):
        raise ValueError("Expected YAML without aliases (*NAME), which settings do not need.")
    return _LOAD_YAML(text)


def command_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Split words into the name of the command and the words after it."""
    groups = {name.partition(".")[0] for name in COMMANDS if "." in name}
    length = 2 if words[0] in groups else 1
    if length == 2 and (len(words) == 1 or words[1] in ("-h", "--help")):
        sys.stdout.write(main_help(words[0]))
        raise SystemExit(0 if len(words) > 1 else 2)
    name = ".".join(words[:length])
    if name not in COMMANDS:
        known = [_words(known) for known in COMMANDS]
        meant = did_you_mean(_words(name), known) or f" The commands are {', '.join(known)}."
        raise NormlessError(f"{_words(name)!r} is not a command.{meant}")
    return name, words[length:]


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Show defaults and required options, and keep the lines of descriptions and examples."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        default = "" if action.nargs == 0 else _written(action.default)
        if action.required and action.option_strings:
            return f"{text} (required)"
        return f"{text} (default: {default})" if default and action.option_strings else text

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [line for part in text.splitlines() for line in super(HelpFormatter, self)._split_lines(part, width)]

    def _format_args(self, action: Action, default_metavar: str) -> str:
        # The value null is only needed in files.
        return super()._format_args(action, default_metavar).replace(",null}", "}")


def _written(default: Any) -> str:
    """Return a default as on the command line, or an empty string."""
    if default is None or default == SUPPRESS:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
