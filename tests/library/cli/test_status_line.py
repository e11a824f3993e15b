"""The line about what is being done: on a terminal, on standard error, gone afterwards; nowhere else."""

from __future__ import annotations

import io
import json
import re
import sys
from argparse import Namespace
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from normless.cli import main, status_line, working

DENSE = "normless:dense(depth=4, width=4)"
# What erases a line of a terminal.
ERASED = "\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def plain(terminal: Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_the_line_is_shown_and_erased(terminal: Terminal) -> None:
    with redirect_stderr(terminal), status_line("reading [bold]net"):
        assert "reading [bold]net …" in plain(terminal)
        assert ERASED not in terminal.getvalue().rpartition("reading")[2]
    assert ERASED in terminal.getvalue().rpartition("reading")[2]


@pytest.mark.parametrize("as_json", [True, False])
def test_what_user_code_prints_is_where_it_was(
    as_json: bool, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    with redirect_stderr(terminal), working(Namespace(json=as_json), "reading"):
        sys.stdout.write("of the user\n")
    assert capsys.readouterr().out == ("" if as_json else "of the user\n")
    assert ("of the user\n" in plain(terminal)) == as_json


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", DENSE, "--schemes"], "reading"),
        (["convert", DENSE, "--scheme", "none", "--out", "out"], "converting"),
        (["probe", DENSE, "--probes", "logits", "--batch-size", "4"], "measuring"),
        (["diagnose", DENSE, "--batch-size", "4"], "diagnosing"),
    ],
)
def test_commands_that_read_a_network_have_one(
    words: list[str],
    said: str,
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with redirect_stderr(terminal):
        assert main([*words, "--json"]) == 0
    assert f"{said} {DENSE} …" in plain(terminal)
    assert terminal.getvalue().rstrip("\n").endswith(ERASED)
    assert json.loads(capsys.readouterr().out)["model"].startswith("normless:dense")
