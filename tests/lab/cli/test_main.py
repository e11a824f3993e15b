"""The command line: its help, without torch and without types of Python, and one JSON object on standard output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import SUPPRESS

import pytest
from command_outputs import SCHEMA, check_output
from jsonargparse import ArgumentParser
from jsonschema import Draft202012Validator, ValidationError

from normless import __version__
from normless.cli import main, print_json
from normless.cli.commands import COMMANDS

Capture = pytest.CaptureFixture[str]
OF_PYTHON = re.compile(r"<class|\bnull\b|\bNone if\b|if None|type: |Optional\[|Literal\[|\bTrue\b|\bFalse\b|\['|\[\d")
# Where an option that has a default can be off, and null is what says so.
WRITTEN_NULL = {"train-text": "Off if null (default: 1.0)"}


def test_help_imports_neither_torch_nor_pandas_nor_matplotlib() -> None:
    script = (
        "import sys; from normless.cli import main\n"
        "for line in ('--help', '--version', 'demo --help', 'train --help', 'sweep run --help'):\n"
        "    assert main(line.split()) == 0, line\n"
        "assert not sys.modules.keys() & {'torch', 'pandas', 'matplotlib', 'sklearn', 'scipy'}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("group", ["", "sweep"])
def test_the_help_names_every_command_and_is_shown_without_one(group: str, capsys: Capture) -> None:
    assert main([*group.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    names = [name for name in COMMANDS if name.startswith(group)]
    listed = printed.split("commands:\n")[1].split("\n\n")[0].splitlines()[: len(names)]
    assert [line.strip().split("  ")[0] for line in listed] == [name.replace(".", " ") for name in names]
    assert all(COMMANDS[name].help in printed for name in names if not group)
    assert not group or printed.rstrip().endswith(f"example:\n  {COMMANDS[names[0]].example}")
    assert main(group.split()) == 2
    assert capsys.readouterr().out == printed


def test_version_is_the_package_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"normless {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It offers JSON, ends with an example, shows no types of Python, and groups options, each with a text."""
    monkeypatch.setenv("COLUMNS", "500")
    assert main([*name.split("."), "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--json" in printed
    assert printed.rstrip().endswith(f"example:\n  {COMMANDS[name].example}")
    assert COMMANDS[name].example.startswith(f"normless {name.replace('.', ' ')} ")
    written = WRITTEN_NULL.get(name, "")
    assert written in printed
    assert OF_PYTHON.search(printed.replace(written, "")) is None
    implementation = COMMANDS[name].implementation()
    assert callable(implementation.run)
    parser = ArgumentParser(exit_on_error=False)
    implementation.add_arguments(parser)
    groups = {
        group.title: [action for action in group._group_actions if action.help != SUPPRESS]
        for group in parser._action_groups
    }
    actions = [action for members in groups.values() for action in members]
    assert [action.dest for action in actions if not (action.help or "").strip()] == []
    if len(actions) > 11:
        assert sum(map(bool, groups.values())) >= 3
        assert sum(len(groups.get(title, [])) for title in ("options", "positional arguments")) <= 8


def test_json_refuses_numbers_that_json_has_not(capsys: Capture) -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"loss": float("nan")})
    assert capsys.readouterr().out == ""
    print_json({"scheme": "α"})
    assert json.loads(capsys.readouterr().out) == {"scheme": "α"}


def test_the_published_schema_has_every_command_and_refuses_what_is_not_in_it() -> None:
    """The tests of the commands validate their real output by it."""
    Draft202012Validator.check_schema(SCHEMA)
    assert {name.replace(".", "-") for name in COMMANDS} <= set(SCHEMA["$defs"])
    exported = {"name": "s", "file": "s.csv", "rows": 3, "missing": 0}
    check_output("sweep export", exported)
    for change, problem in (
        ({"further": 1}, "'further' was unexpected"),
        ({"rows": "3"}, "'3' is not of type 'integer'"),
        ({"missing": None}, "None is not of type 'integer'"),
    ):
        with pytest.raises(ValidationError, match=problem):
            check_output("sweep export", exported | change)
    with pytest.raises(ValidationError, match="'name' is a required property"):
        check_output("sweep export", {"file": "s.csv", "rows": 3, "missing": 0})
