"""What ``--json`` prints, against the schema that ``docs/json_outputs.schema.json`` publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "json_outputs.schema.json").read_text("utf-8"))


def check_output(command: str, printed: Any) -> None:
    """Raise a ValidationError where the object that a command printed is not what the schema says."""
    part = {"$ref": f"#/$defs/{command.replace(' ', '-')}", "$defs": SCHEMA["$defs"]}
    Draft202012Validator(part).validate(printed)
