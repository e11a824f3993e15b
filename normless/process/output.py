"""The output of commands: text or JSON on standard output."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import Any


def print_json(value: dict[str, Any]) -> None:
    """Write one JSON object and nothing else; ValueError for a number that is not finite, which JSON lacks."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def add_json_flag(parser: Any) -> None:
    """Add ``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def only_json(arguments: Any) -> AbstractContextManager[Any]:
    """With ``--json``, what user code prints goes to standard error, since it is not part of the JSON object."""
    return redirect_stdout(sys.stderr) if arguments.json else nullcontext()


def answer(arguments: Any, facts: dict[str, Any], text: str) -> int:
    """Print facts with ``--json``, else a text with a line break after it; returns the exit code 0."""
    if arguments.json:
        print_json(facts)
    else:
        sys.stdout.write(f"{text}\n")
    return 0
