"""Carrying out artefacts, by a function and by the command: what is kept and shown; nothing is done twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from command_outputs import check_output
from papers_helpers import figure

from normless.cli import main
from normless.errors import NormlessError
from normless_lab.train import TrainConfig
from normless_lab.train.pauses import TerminatedError
from normless_papers.artefact import Artefact, Context, Evidence
from normless_papers.claims import check
from normless_papers.published import published, published_as
from normless_papers.results import reproduce as module
from normless_papers.results.reproduce import laboratory_in, reproduce
from normless_papers.results.storage import folder_of, load

NAME = "fixup/equation-1"
Function = Callable[..., Evidence]
Install = Callable[[Function], list[dict[str, Any]]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a function in the place of an artefact's; returns the list of its calls."""

    def put(function: Function, **settings: object) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def counted(context: Context, **asked: object) -> Evidence:
            calls.append({"context": context, **asked})
            return function(context, **asked)

        made = Artefact(published_as(NAME), "training", counted, checks=tuple)
        vars(made)["settings"] = {"smoke": settings or {"depth": 4}, "small": {"depth": 8}, "paper": {"depth": 9}}
        monkeypatch.setattr(module, "artefact_of", lambda name: made)
        return calls

    return put


def evidence(context: Context, *, depth: int) -> Evidence:
    table = pd.DataFrame({"depth": [depth], "drawn": [float(torch.rand(()))]})
    return Evidence(table, (check("It is deep.", depth > 3, depth=depth),), {"depth": depth}, draw=figure)


def raising(error: BaseException | type[BaseException]) -> Function:
    def function(context: Context, *, depth: int) -> Evidence:
        raise error

    return function


def test_evidence_is_kept(tmp_path: Path, install: Install) -> None:
    calls = install(evidence)
    result = reproduce(NAME, out=tmp_path, data="digits", seed=3)
    assert (result.verdict, result.error, result.runs) == ("reproduced", "", ())
    assert result.asked == {"data": "digits", "data_root": None, "seed": 3, "settings": {"depth": 4}}
    assert result.seconds > 0
    assert {"normless", "python", "torch", "machine", "date"} <= set(result.provenance)
    assert "test accuracy" in result.figure
    context = calls[0]["context"]
    assert (context.budget, context.data, context.seed) == ("smoke", "digits", 3)
    back = load(tmp_path, NAME, "smoke")
    assert back is not None
    assert back.to_dict() == result.to_dict()
    folder = folder_of(tmp_path, NAME, "smoke")
    assert (folder / "figure.svg").exists()
    assert not (folder / "files").exists()


def test_the_same_is_not_done_twice(tmp_path: Path, install: Install) -> None:
    calls = install(evidence)
    first = reproduce(NAME, out=tmp_path)
    assert reproduce(NAME, out=tmp_path).to_dict() == first.to_dict()
    assert len(calls) == 1
    reproduce(NAME, out=tmp_path, again=True)
    reproduce(NAME, out=tmp_path, seed=1)
    reproduce(NAME, out=tmp_path, seed=1, data="digits")
    reproduce(NAME, "small", out=tmp_path)
    assert len(calls) == 5
    calls = install(evidence, depth=5)  # type: ignore[call-arg]
    reproduce(NAME, out=tmp_path, seed=1, data="digits")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(NormlessError("No data set\n  here."), "No data set here."), (KeyError("depth"), "KeyError: 'depth'")],
)
def test_an_error_is_a_result_that_is_tried_again(
    tmp_path: Path, install: Install, error: Exception, sentence: str
) -> None:
    install(raising(error))
    result = reproduce(NAME, out=tmp_path)
    assert (result.verdict, result.error) == ("error", sentence)
    assert list((tmp_path / "artefacts").rglob("figure.*")) == []
    install(evidence)
    assert reproduce(NAME, out=tmp_path).verdict == "reproduced"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TerminatedError])
def test_an_interruption_is_one_and_an_older_result_stays(
    tmp_path: Path, install: Install, stop: type[BaseException]
) -> None:
    install(raising(stop))
    with pytest.raises(stop):
        reproduce(NAME, out=tmp_path)
    assert load(tmp_path, NAME, "smoke") is None
    install(evidence)
    older = reproduce(NAME, out=tmp_path)
    install(raising(stop))
    with pytest.raises(stop):
        reproduce(NAME, out=tmp_path, again=True)
    kept = load(tmp_path, NAME, "smoke")
    assert kept is not None
    assert kept.to_dict() == older.to_dict()


@pytest.mark.slow
def test_runs_are_noted_and_shared(tmp_path: Path, install: Install) -> None:
    model = "normless:wide_resnet(depth=10, width=1)"
    config = TrainConfig(model=model, data="digits", epochs=1, batch_size=512, device="cpu")

    def training(context: Context, *, depth: int) -> Evidence:
        (row,) = context.lab.carry_out([config])
        return Evidence(pd.DataFrame({"outcome": [row.outcome]}), (check("It ran.", row.error is None),), {})

    install(training)
    with laboratory_in(tmp_path, 1) as laboratory:
        first = reproduce(NAME, out=tmp_path, laboratory=laboratory)
        again = reproduce(NAME, out=tmp_path, laboratory=laboratory, again=True)
    assert first.runs == again.runs == (config.hash,)
    assert first.verdict == again.verdict == "reproduced"


def shown(context: Context, *, verdict: bool | None) -> Evidence:
    sys.stdout.write("what an artefact says\n")
    runs = pd.DataFrame({"depth": [16], "scheme": "fixup", "outcome": "trained", "test_accuracy": [0.9]})
    checks = (check("It holds.", verdict, measured=0.98765, bound=1.0),)
    return Evidence(runs, checks, {"data": "none"}, draw=figure if verdict else None, remarks=("One seed.",))


@pytest.fixture
def _of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a paper's artefacts the first holds, the second fails and the third raises; others are inconclusive."""

    def artefact(name: str) -> Artefact:
        names = [entry for entry in published() if entry.partition("/")[0] == name.partition("/")[0]]
        place = names.index(name)
        settings: dict[str, Any] = {"verdict": {0: True, 1: False}.get(place)} | (
            {"unknown": 1} if place == 2 else {}
        )
        made = Artefact(published_as(name), "training", shown, checks=tuple)
        vars(made)["settings"] = dict.fromkeys(("smoke", "small", "gpu", "paper"), settings)
        return made

    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(module, "artefact_of", artefact)


@pytest.mark.usefixtures("_of_the_command")
def test_one_artefact_is_shown_in_full(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "results"
    assert main(["reproduce", "fixup/design-goal", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    for words in (
        *("fixup/design-goal", "at the smoke budget: reproduced", "✓ It holds.", "measured 0.9877 · bound 1"),
        *("note: One seed.", f"wrote {out}/artefacts/fixup/design-goal/smoke/figure.png"),
    ):
        assert words in printed.out
    assert "what an artefact says" not in printed.out
    assert "[1/1] fixup/design-goal ✓ reproduced" in printed.err


@pytest.mark.usefixtures("_of_the_command")
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


@pytest.mark.usefixtures("_of_the_command")
def test_the_page_is_made_of_what_is_there(tmp_path: Path, capsys: Capture) -> None:
    facts: dict[str, Any] = {}
    for words in (["reproduce", "fixup/fixup", "--out", str(tmp_path)], ["report", str(tmp_path)]):
        assert main([*words, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        check_output(words[0], facts)
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
        ("reproduce", "Expected ids of artefacts, such as fixup/table-1, or --all"),
        ("reproduce fixup/fixup --all", "Expected ids of artefacts, such as fixup/table-1, or --all"),
        ("reproduce fixup/fixup fixup/tabel-1", "No artefact has the id 'fixup/tabel-1'. Did you mean"),
        ("reproduce --list --paper fix", "There is no paper 'fix'; choose among skipinit"),
        ("reproduce fixup/fixup --budget huge", "budget"),
        ("report nowhere", "nowhere holds no results"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    words: str, problem: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
