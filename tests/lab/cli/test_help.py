"""The help of every command: a text for every option, in groups, without types of Python."""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterator

import pytest
from jsonargparse import ArgumentParser

from normless.cli import main
from normless.cli.commands import COMMANDS

OF_PYTHON = re.compile(r"<class|\bnull\b|\bNone if\b|if None|type: |Optional\[|Literal\[|\bTrue\b|\bFalse\b|\['|\[\d")
# Where an option that has a default can be off, and null is what says so.
WRITTEN_NULL = {"train-text": "Off if null (default: 1.0)"}


def _help_of(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "500")
    assert main([*name.split(), "--help"]) == 0
    return capsys.readouterr().out


def _groups(name: str) -> Iterator[tuple[str | None, list[Action]]]:
    """The titled groups of a command's options that its help shows."""
    parser = ArgumentParser(exit_on_error=False)
    COMMANDS[name].implementation().add_arguments(parser)
    for group in parser._action_groups:
        yield group.title, [action for action in group._group_actions if action.help != SUPPRESS]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_shows_types_of_python(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = _help_of(name, capsys, monkeypatch)
    written = WRITTEN_NULL.get(name, "")
    assert written in printed
    assert OF_PYTHON.search(printed.replace(written, "")) is None


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_text_and_many_have_groups(name: str) -> None:
    groups = [(title, actions) for title, actions in _groups(name) if actions]
    actions = [action for _, members in groups for action in members]
    assert [action.dest for action in actions if not (action.help or "").strip()] == []
    shown = dict(groups)
    default = [action for title in ("options", "positional arguments") for action in shown.get(title, [])]
    if len(actions) > 11:
        assert len(groups) >= 3
        assert len(default) <= 8
