"""What a command says on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_json(value: dict[str, Any]) -> None:
    """Write one JSON object and nothing else; a number that is not finite is refused, as JSON has none.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def add_json_flag(parser: Any) -> None:
    """Add ``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
