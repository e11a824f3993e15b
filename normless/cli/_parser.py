"""Parse the command line, and import only the module of the chosen command."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader, set_loader
from yaml import YAMLError

from normless.cli._commands import COMMANDS, help_of, is_task, tasks_of
from normless.errors import NormlessError
from normless.plain_yaml import check_plain
from normless.registry import did_you_mean

# The task of a command without the flag.
FIRST_TASK = "images"
_SEEDS = 2**63
_LOAD_YAML = get_loader("yaml")


def main_help(group: str = "") -> str:
    """Return the text of ``normless --help``, or of ``normless GROUP --help`` for a group such as sweep."""
    known = [name for name in COMMANDS if not is_task(name)]
    names = [name for name in known if name[0] != "-" and (not group or name.startswith(f"{group}."))]
    if group:
        rows = {_words(name): help_of(name) for name in names}
    else:
        groups = {name.partition(".")[0] for name in names if "." in name}
        rows = {name: help_of(name) for name in names if "." not in name}
        rows |= {name: _of_group([other for other in names if other.startswith(f"{name}.")]) for name in groups}
    flags = {} if group else {"--version": "show the version", "--debug": "show the whole traceback of an error"}
    flags |= {name: help_of(name) for name in known if name[0] == "-" and not group}
    command = _words(names[0]) if group else "COMMAND"
    options = {"-h, --help": f"show this help; normless {command} --help shows the help of a command"} | flags
    lines = [f"usage: normless {f'{group} ' if group else ''}COMMAND [options]", ""]
    if not group:
        lines += ["Train deep residual networks with and without normalization, and see why one trains.", ""]
    lines += ["commands:", *_rows(rows), "", "options:", *_rows(options)]
    return "\n".join([*lines, "", "example:", f"  {COMMANDS[names[0]].example}", ""])


def _of_group(names: Sequence[str]) -> str:
    """Return the line of a group of commands in the main help: their names, and what the first to use does."""
    first = next((name for name in names if name.endswith(".run")), names[0])
    return f"{', '.join(name.partition('.')[2] for name in names)}; {help_of(first).partition(';')[0]}"


def _rows(texts: Mapping[str, str]) -> list[str]:
    width = max(map(len, texts)) + 2
    return [f"  {name:<{width}}{text}" for name, text in texts.items()]


def _words(name: str) -> str:
    """Return the name of a command as written on the command line."""
    return name.replace(".", " --task " if is_task(name) else " ")


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
    if tasks := tasks_of(name.partition(".")[0]):
        # It is read before the other flags, which depend on it.
        parser.add_argument("--task", default=SUPPRESS, choices=[FIRST_TASK, *tasks], help="what is learned")
    _show(parser, getattr(implementation, "COMMON", ()), rest)
    set_loader("yaml", _plain, (YAMLError, ValueError, TypeError, RecursionError))
    _check_paths(parser, rest)
    try:
        namespace = parser.parse_args(rest)
    except ArgumentError as error:
        known = parser._option_string_actions
        raise NormlessError(f"{_sentence(str(error), rest, known)}; see normless {_words(name)} --help.") from error
    seed = getattr(namespace, "seed", None)
    if isinstance(seed, int) and not 0 <= seed < _SEEDS:
        raise NormlessError(f"Expected --seed to be a whole number from 0 to 2^63 − 1, got {seed}.")
    return implementation.run, namespace


def _show(parser: ArgumentParser, common: Collection[str], words: Sequence[str]) -> None:
    """Show the common flags of a command in its help, if it says which they are, in one sentence each.

    ``--help-all`` shows all flags, and all that there is to say of them.
    """
    if not common:
        return
    parser.add_argument("--help-all", action="help", default=SUPPRESS, help="show all flags, in full")
    for action in () if "--help-all" in words else parser._actions:
        is_shown = action.dest in (*common, "help", "help_all", "task")
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


def _plain(text: str) -> Any:
    """Load YAML that `check_plain` accepts."""
    check_plain(text)
    return _LOAD_YAML(text)


def command_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Split words into the name of the command and the words after it."""
    groups = {name.partition(".")[0] for name in COMMANDS if "." in name and not is_task(name)}
    length = 2 if words[0] in groups else 1
    if length == 2 and (len(words) == 1 or words[1] in ("-h", "--help")):
        sys.stdout.write(main_help(words[0]))
        raise SystemExit(0 if len(words) > 1 else 2)
    name = ".".join(words[:length])
    if name not in COMMANDS:
        known = [_words(known) for known in COMMANDS]
        meant = did_you_mean(_words(name), known) or f" The commands are {', '.join(known)}."
        raise NormlessError(f"{_words(name)!r} is not a command.{meant}")
    return _with_task(name, words[length:])


def _with_task(name: str, words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the command for the task that ``--task`` names, and the words without it."""
    tasks = tasks_of(name)
    at = next((at for at, word in enumerate(words) if tasks and word.partition("=")[0] == "--task"), None)
    if at is None:
        return name, words
    _, is_joined, task = words[at].partition("=")
    rest = [*words[:at], *words[at + (1 if is_joined else 2) :]]
    task = task if is_joined else next(iter(words[at + 1 :]), "")
    if task == FIRST_TASK:
        return name, rest
    if task not in tasks:
        raise NormlessError(f"Expected {', '.join([FIRST_TASK, *tasks])} as --task of {name}, got {task!r}.")
    return f"{name}.{task}", rest


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
