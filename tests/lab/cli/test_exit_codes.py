"""The exit codes that ``docs/training.md`` documents, and colour only where it is wanted."""

from __future__ import annotations

import re

import pytest
from rich.console import Console
from rich.text import Text

from normless.cli import main
from normless.cli.network import OUTCOME_COLOURS, table
from normless_lab.train.pauses import TerminatedError, TimeLimitError

ENDS: dict[int, BaseException | None] = {
    0: None,
    1: RuntimeError("not expected"),
    2: ValueError("a mistake"),
    75: TimeLimitError("The run reached its time limit."),
    130: KeyboardInterrupt(),
    143: TerminatedError("The run was told to end."),
}


@pytest.mark.parametrize(("code", "error"), ENDS.items())
def test_every_documented_code_occurs(
    code: int, error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(namespace: object) -> int:
        if error is not None:
            raise error
        return 0

    monkeypatch.setattr("normless.cli.listing.run", ends)
    assert main(["list"]) == code


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    coloured = table(("outcome",), [(Text("diverged", OUTCOME_COLOURS["diverged"]),)])
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    Console().print(coloured)
    assert colour.search(capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    Console().print(coloured)
    printed = capsys.readouterr().out
    assert "diverged" in printed
    assert not colour.search(printed)
