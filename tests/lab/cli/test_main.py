"""The command line: its help, without torch and without types of Python, and one JSON object on standard output."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from command_outputs import SCHEMA, check_output
from jsonargparse import ArgumentParser
from jsonschema import Draft202012Validator, ValidationError

from normless.cli import main, print_json
from normless.cli._commands import COMMANDS, is_task

Capture = pytest.CaptureFixture[str]
OF_PYTHON = re.compile(r"<class|\bnull\b|\bNone if\b|if None|type: |Optional\[|Literal\[|\bTrue\b|\bFalse\b|\['|\[\d")
# Where an option that has a default can be off, and null is what says so.
WRITTEN_NULL = {"train.text": "Off if null (default: 1.0)"}


def test_help_imports_neither_torch_nor_pandas_nor_matplotlib() -> None:
    script = (
        "import sys; from normless.cli import main\n"
        "for line in ('--help', '--version', 'demo --help', 'train --help', 'sweep run --help'):\n"
        "    assert main(line.split()) == 0, line\n"
        "assert not sys.modules.keys() & {'torch', 'pandas', 'matplotlib', 'sklearn', 'scipy'}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It offers JSON, ends with an example, shows no types of Python, and has a text for each option."""
    monkeypatch.setenv("COLUMNS", "500")
    implementation = COMMANDS[name].implementation()
    words = name.replace(".", " --task " if is_task(name) else " ")
    assert main([*words.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--json" in printed
    if common := getattr(implementation, "COMMON", ()):
        assert len(printed.splitlines()) < 60, "a screen"
        assert main([*words.split(), "--help-all"]) == 0
        whole = capsys.readouterr().out
        flags = [re.findall(r"^  (--[\w-]+)", text, re.MULTILINE) for text in (printed, whole)]
        assert {flag[2:].replace("-", "_") for flag in flags[0]} - {"help_all", "task"} <= common
        assert {*flags[0]} < {*flags[1]}
        printed = whole
    assert printed.rstrip().endswith(f"example:\n  {COMMANDS[name].example}")
    assert COMMANDS[name].example.startswith(f"normless {words} ")
    written = WRITTEN_NULL.get(name, "")
    assert written in printed
    assert OF_PYTHON.search(printed.replace(written, "")) is None
    assert callable(implementation.run)
    parser = ArgumentParser(exit_on_error=False)
    implementation.add_arguments(parser)
    assert [action.dest for action in parser._actions if not (action.help or "").strip()] == []


def test_json_refuses_numbers_that_json_has_not(capsys: Capture) -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"loss": float("nan")})
    assert capsys.readouterr().out == ""
    print_json({"scheme": "α"})
    assert json.loads(capsys.readouterr().out) == {"scheme": "α"}


def test_the_published_schema_has_every_command_and_refuses_what_is_not_in_it() -> None:
    """The tests of the commands validate their real output by it."""
    Draft202012Validator.check_schema(SCHEMA)
    assert {name.replace(".", "-").strip("-") for name in COMMANDS} <= set(SCHEMA["$defs"])
    exported = {"name": "s", "file": "s.csv", "rows": 3, "missing": 0}
    check_output("sweep export", exported)
    with pytest.raises(ValidationError, match="'further' was unexpected"):
        check_output("sweep export", exported | {"further": 1})
    with pytest.raises(ValidationError, match="'name' is a required property"):
        check_output("sweep export", {"file": "s.csv", "rows": 3, "missing": 0})
