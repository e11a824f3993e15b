"""``normless reproduce`` and ``normless report``: what is asked for is carried out, kept, listed and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_outputs import check_output

from normless.cli import main
from normless_lab.plots import lines
from normless_papers.artefact import Artefact, Context, Evidence
from normless_papers.claims import check
from normless_papers.published import published, published_as
from normless_papers.results import reproduce as module

Capture = pytest.CaptureFixture[str]


def carried_out(context: Context, *, verdict: bool | None) -> Evidence:
    sys.stdout.write("what an artefact says\n")
    runs = pd.DataFrame({"depth": [16], "scheme": "fixup", "outcome": "trained", "test_accuracy": [0.9]})
    checks = (check("It holds.", verdict, measured=0.98765, bound=1.0),)
    draw = (lambda: lines(runs, x="depth", y="test_accuracy")) if verdict else None
    return Evidence(runs, checks, {"data": "none"}, draw=draw, remarks=("One seed.",))


def artefact(name: str) -> Artefact:
    """Of a paper's artefacts the first holds, the second fails and the third raises; others are inconclusive."""
    names = [entry for entry in published() if entry.partition("/")[0] == name.partition("/")[0]]
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
    assert main(["reproduce", "fixup/design-goal", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "fixup/design-goal" in printed.out
    assert "at the smoke budget: reproduced" in printed.out
    assert "✓ It holds." in printed.out
    assert "measured 0.9877 · bound 1" in printed.out
    assert "note: One seed." in printed.out
    assert f"wrote {out}/artefacts/fixup/design-goal/smoke/figure.png" in printed.out
    assert "what an artefact says" not in printed.out
    assert "[1/1] fixup/design-goal ✓ reproduced" in printed.err


def test_a_failing_claim_is_no_error_and_an_error_does_not_stop(tmp_path: Path, capsys: Capture) -> None:
    names = [name for name in published() if name.startswith("gamma/")]
    assert main(["reproduce", names[1], "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["reproduce", "--all", "--paper", "gamma", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert f"{len(names)} artefacts in" in told.out
    # The networks were not of the paper's kind, so that the one that fails contradicts nothing.
    assert f"1 reproduced, {len(names) - 2} not seen here, 1 error" in told.out
    # The one that raised came to no evidence, and so to none of any class.
    assert f"training: 1 reproduced, {len(names) - 2} not seen here" in told.out
    assert "unexpected keyword argument 'unknown'" in told.out
    assert f"[{len(names)}/{len(names)}]" in told.err


def test_the_page_is_made_of_what_is_there(tmp_path: Path, capsys: Capture) -> None:
    said(capsys, "reproduce", "fixup/fixup", "--out", str(tmp_path))
    facts = said(capsys, "report", str(tmp_path))
    page = Path(facts["page"])
    assert page == tmp_path / "index.html"
    assert page.stat().st_size == facts["bytes"]
    assert list(facts["files"]) == [str(page), str(tmp_path / "fixup.html")]
    assert "fixup/fixup" in (tmp_path / "fixup.html").read_text("utf-8")
    others = [tmp_path / f"{name}.md" for name in ("claims", "silent", "verdicts")]
    options = [word for path in others for word in (f"--{path.stem}", str(path))]
    assert main(["report", str(tmp_path), "--page", str(tmp_path / "p.html"), *options]) == 0
    printed = capsys.readouterr().out
    assert all(f"wrote {path}" in printed for path in (tmp_path / "p.html", *others))
    assert all(path.read_text("utf-8").startswith("# ") for path in others)


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
