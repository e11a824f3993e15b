"""The help of every command: a text for every option, in groups, without types of Python."""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterator

import pytest
from jsonargparse import ArgumentParser

from normless.cli import main
from normless.cli.commands import COMMANDS
from normless.cli.help import HelpFormatter
from normless_lab.bench.command import BENCHMARKS

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


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"type": int, "default": 3}, "text (default: 3)"),
        ({"type": str, "required": True}, "text (required)"),
        ({"type": str | None, "default": None}, "text"),
        ({"type": bool, "default": False}, "text (default: false)"),
        ({"action": "store_true"}, "text"),
        ({"type": float, "nargs": "+", "default": [0.1, 0.2]}, "text (default: 0.1 0.2)"),
    ],
)
def test_a_default_is_shown_as_it_is_written(arguments: dict[str, object], shown: str) -> None:
    parser = ArgumentParser(exit_on_error=False, formatter_class=HelpFormatter)
    parser.add_argument("--option", help="text", **arguments)
    assert parser.format_help().rstrip().endswith(f" {shown}")


def test_a_benchmark_has_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line.strip() for line in _help_of("bench", capsys, monkeypatch).splitlines()]
    for name, benchmark in BENCHMARKS.items():
        assert f"{name}: {benchmark.summary}" in lines


@pytest.mark.parametrize("name", ["train", "train-text", "train-translation"])
def test_the_help_of_a_run_names_flags_as_they_are_written(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = _help_of(name, capsys, monkeypatch)
    settings = {action.dest for _, actions in _groups(name) for action in actions if "_" in action.dest}
    texts = [action.help or "" for _, actions in _groups(name) for action in actions]
    assert not {word for text in texts for word in re.findall(r"\w+", text)} & settings
    assert ("first epochs, trained at --warm-start-rate;" in printed) == (name == "train")
    assert (
        "print all settings as YAML, those of the other flags too, and exit; with =skip_default those alone"
        in printed
    )
    assert "normless.optim.decay" not in printed
