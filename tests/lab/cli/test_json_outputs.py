"""The published schema of what ``--json`` prints; the tests of the commands validate their real output by it."""

from __future__ import annotations

from typing import Any

import pytest
from command_outputs import SCHEMA, check_output
from jsonschema import Draft202012Validator, ValidationError

from normless.cli.commands import COMMANDS

EXPORTED = {"name": "s", "file": "s.csv", "rows": 3, "missing": 0}


def test_every_command_has_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert {name.replace(".", "-") for name in COMMANDS} <= set(SCHEMA["$defs"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"further": 1}, "'further' was unexpected"),
        ({"rows": "3"}, "'3' is not of type 'integer'"),
        ({"missing": None}, "None is not of type 'integer'"),
    ],
)
def test_what_is_not_in_the_schema_is_refused(change: dict[str, Any], problem: str) -> None:
    check_output("sweep export", EXPORTED)
    with pytest.raises(ValidationError, match=problem):
        check_output("sweep export", EXPORTED | change)
    with pytest.raises(ValidationError, match="'name' is a required property"):
        check_output("sweep export", {name: value for name, value in EXPORTED.items() if name != "name"})
