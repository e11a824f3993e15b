"""The output of commands: text or JSON on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from normless.cli._streams import is_unicode

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: dict[str, Any]) -> None:
    """Write one JSON object and nothing else; ValueError for a number that is not finite, which JSON lacks."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not is_unicode(), allow_nan=False) + "\n")


def add_json_flag(parser: Any) -> None:
    """Add ``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


@contextmanager
def working(arguments: Any, what: str) -> Iterator[None]:
    """Show a status line on standard error during the body if that is a terminal.

    With ``--json``, the output of user code goes to standard error, since it is not part of the JSON object.
    """
    with redirect_stdout(sys.stderr) if arguments.json else nullcontext(), status_line(what):
        yield


def status_line(what: str, console: Console | None = None) -> AbstractContextManager[Any]:
    """Return the context of the status line of `working`, on a console, or on standard error if None."""
    if not (sys.stderr.isatty() if console is None else console.is_terminal):
        return nullcontext()
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    # Standard output is only redirected on a terminal, not for a pipe.
    redirected = sys.stdout.isatty()
    spinner = Spinner("dots", Text(f"{what} …"))
    console = console or Console(stderr=True)
    return Live(spinner, console=console, transient=True, redirect_stdout=redirected)


def answer(arguments: Any, facts: dict[str, Any], text: str) -> int:
    """Print facts with ``--json``, else a text with a line break after it; returns the exit code 0."""
    if arguments.json:
        print_json(facts)
    else:
        sys.stdout.write(f"{text}\n")
    return 0
