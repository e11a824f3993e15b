"""The output of commands: JSON on standard output."""

from __future__ import annotations

import json
import sys
from math import isfinite, isnan
from typing import Any


def print_json(value: dict[str, Any]) -> None:
    """Write one JSON object and nothing else; a number that is not finite is refused, as JSON has none.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """A nested value without numbers that JSON lacks: NaN becomes None, infinities `"inf"` and `"-inf"`."""
    if isinstance(value, dict):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None if isnan(value) else str(value)
    return value


def add_json_flag(parser: Any) -> None:
    """Add ``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
