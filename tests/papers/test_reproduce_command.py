"""``normless reproduce`` and ``normless report``: what is asked for is carried out, kept, listed and shown."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_outputs import check_output
from rich.console import Console

from normless.cli import main
from normless_lab.plots import accuracy_against_depth
from normless_lab.sweeps import RunRow
from normless_papers import reproduce as module
from normless_papers.artefact import Artefact, Context, Evidence
from normless_papers.claims import check
from normless_papers.cli.progress import ReproductionProgress
from normless_papers.published import published, published_as
from normless_papers.reproduction import Reproduction

Capture = pytest.CaptureFixture[str]


def carried_out(context: Context, *, verdict: bool | None) -> Evidence:
    sys.stdout.write("what an artefact says\n")
    runs = pd.DataFrame({"depth": [16], "scheme": "fixup", "outcome": "trained", "test_accuracy": [0.9]})
    checks = (check("It holds.", verdict, measured=0.98765, bound=1.0),)
    draw = (lambda: accuracy_against_depth(runs)) if verdict else None
    return Evidence(runs, checks, {"data": "none"}, draw=draw, remarks=("One seed.",))


def artefact(name: str) -> Artefact:
    """Of a paper's artefacts the first holds, the second fails and the third raises; others are inconclusive."""
    names = [one for one in published() if one.partition("/")[0] == name.partition("/")[0]]
    place = names.index(name)
    settings: dict[str, Any] = {"verdict": {0: True, 1: False}.get(place)} | ({"unknown": 1} if place == 2 else {})
    made = Artefact(published_as(name), "training", carried_out, checks=tuple)
    vars(made)["settings"] = dict.fromkeys(("smoke", "small", "gpu", "paper"), settings)
    return made


@pytest.fixture(autouse=True)
def _artefacts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(module, "artefact_of", artefact)


def said(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*words, "--json"]) == code
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    check_output(words[0], printed)
    return printed


def test_one_artefact_is_shown_in_full(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "results"
    assert main(["reproduce", "fixup/fixup", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "fixup/fixup" in told.out
    assert "at the smoke budget: holds" in told.out
    assert "✓ It holds." in told.out
    assert "measured 0.9877 · bound 1" in told.out
    assert "note: One seed." in told.out
    assert f"wrote {out}/artefacts/fixup/fixup/smoke/figure.png" in told.out
    assert "what an artefact says" not in told.out
    assert "[1/1] fixup/fixup ✓ holds" in told.err


def test_a_failing_claim_is_no_error_and_an_error_does_not_stop(tmp_path: Path, capsys: Capture) -> None:
    names = [name for name in published() if name.startswith("gamma/")]
    assert main(["reproduce", names[1], "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["reproduce", "--all", "--paper", "gamma", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert f"{len(names)} artefacts in" in told.out
    assert f"1 holds, 1 fails, {len(names) - 3} inconclusive, 1 error" in told.out
    # The one that raised came to no evidence, and so to none of any class.
    assert f"training: 1 holds, 1 fails, {len(names) - 3} inconclusive" in told.out
    assert "unexpected keyword argument 'unknown'" in told.out
    assert f"[{len(names)}/{len(names)}]" in told.err


def test_machines_get_everything(tmp_path: Path, capsys: Capture) -> None:
    facts = said(capsys, "reproduce", "fixup/fixup", "fixup/equation-1", "--out", str(tmp_path), "--seed", "4")
    first, second = facts["results"]
    assert (first["id"], first["verdict"], second["id"]) == ("fixup/fixup", "holds", "fixup/equation-1")
    assert first["asked"] == {"data": None, "data_root": None, "seed": 4, "settings": {"verdict": True}}
    assert first["checks"][0]["numbers"] == {"measured": 0.98765, "bound": 1.0}
    assert (Path(first["files"]) / "result.json").exists()


def test_the_list_tells_what_became_of_each(tmp_path: Path, capsys: Capture) -> None:
    said(capsys, "reproduce", "fixup/fixup", "--budget", "small", "--out", str(tmp_path))
    listed = said(capsys, "reproduce", "--list", "--out", str(tmp_path))["artefacts"]
    assert [one["id"] for one in listed] == list(published())
    states = {one["id"]: one["states"] for one in listed}
    assert states["fixup/fixup"] == {"smoke": "not run", "small": "holds", "gpu": "not run", "paper": "not run"}
    assert set(states["gamma/table-2"].values()) == {"not run"}
    assert main(["reproduce", "--list", "--paper", "zeroinit", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["artefact", "kind", "smoke", "small", "gpu", "paper", "title"]
    assert all(line.startswith(("zeroinit/", " ")) for line in lines[1:])


def test_the_page_is_made_of_what_is_there(tmp_path: Path, capsys: Capture) -> None:
    said(capsys, "reproduce", "fixup/fixup", "--out", str(tmp_path))
    facts = said(capsys, "report", str(tmp_path))
    page = Path(facts["page"])
    assert page == tmp_path / "index.html"
    assert page.stat().st_size == facts["bytes"]
    assert list(facts["files"]) == [str(page), str(tmp_path / "fixup.html")]
    assert "fixup/fixup" in (tmp_path / "fixup.html").read_text("utf-8")
    assert main(["report", str(tmp_path), "--page", str(tmp_path / "p.html")]) == 0
    assert f"wrote {tmp_path / 'p.html'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["reproduce"], "Expected ids of artefacts, such as fixup/table-1, or --all"),
        (["reproduce", "fixup/fixup", "--all"], "Expected ids of artefacts, such as fixup/table-1, or --all"),
        (["reproduce", "fixup/fixup", "fixup/tabel-1"], "No artefact has the id 'fixup/tabel-1'. Did you mean"),
        (["reproduce", "--list", "--paper", "fix"], "There is no paper 'fix'; choose among skipinit"),
        (["reproduce", "fixup/fixup", "--budget", "huge"], "budget"),
        (["report", "nowhere"], "nowhere holds no results"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    words: list[str], problem: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def row(name: str) -> RunRow:
    return RunRow(name, "train", {}, "trained", None, {}, 1.0, "", "", {})


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_tells_of_runs(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normless_papers.cli.progress.SECONDS_BETWEEN_LINES", 0)
    written = StringIO()
    console = Console(force_terminal=terminal, width=100, color_system=None, file=written)
    with ReproductionProgress(2, console) as progress:
        progress.begin("fixup/table-1")
        progress.on_begin(3, 1)
        progress.on_runs([row("a"), row("b")])
        progress.end(Reproduction("fixup/table-1", "smoke", {}, error="No memory."))
    assert "[1/2] fixup/table-1: 2 of 3 training runs" in written.getvalue()
    assert "[1/2] fixup/table-1 ! error, 0.0 s: No memory." in written.getvalue()
