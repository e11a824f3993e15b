"""Artefacts, ours and those of a sixth paper, by a function and by the command: what is kept and not done twice."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from papers_helpers import figure

from normless.cli import main
from normless_papers.artefact import Artefact, Context, Evidence, artefact_of, artefacts
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.claims import check
from normless_papers.pages.site import write_pages_of
from normless_papers.published import UnknownArtefactError, published, published_as
from normless_papers.results import reproduce as module
from normless_papers.results.reproduce import reproduce
from normless_papers.results.reproduction import folder_of, load, plain

NAME = "fixup/equation-1"
Function = Callable[..., Evidence]
Install = Callable[[Function], list[dict[str, Any]]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a function in the place of an artefact's; returns the list of its calls."""

    def put(function: Function) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def counted(context: Context, **asked: object) -> Evidence:
            calls.append({"context": context, **asked})
            return function(context, **asked)

        made = Artefact(published_as(NAME), "training", counted, checks=tuple)
        vars(made)["settings"] = {"smoke": {"depth": 4}, "small": {"depth": 8}}
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
    context = calls[0]["context"]
    assert (context.budget, context.data, context.seed) == ("smoke", "digits", 3)
    back = load(tmp_path, NAME, "smoke")
    assert back is not None
    assert back.to_dict() == result.to_dict()
    assert (folder_of(tmp_path, NAME, "smoke") / "figure.svg").exists()


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


def test_an_error_is_a_result_that_is_tried_again(tmp_path: Path, install: Install) -> None:
    install(raising(KeyError("depth")))
    result = reproduce(NAME, out=tmp_path)
    assert (result.verdict, result.error) == ("error", "KeyError: 'depth'")
    install(evidence)
    assert reproduce(NAME, out=tmp_path).verdict == "reproduced"


def test_an_interruption_is_one_and_an_older_result_stays(tmp_path: Path, install: Install) -> None:
    install(evidence)
    older = reproduce(NAME, out=tmp_path)
    install(raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reproduce(NAME, out=tmp_path, again=True)
    kept = load(tmp_path, NAME, "smoke")
    assert kept is not None
    assert kept.to_dict() == older.to_dict()


def decided(context: Context, *, verdict: bool | None) -> Evidence:
    return Evidence(pd.DataFrame({"depth": [16]}), (check("It holds.", verdict),), {"data": "none"})


@pytest.fixture
def _of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a paper's artefacts the first holds, the second fails and the third raises; others are inconclusive."""

    def artefact(name: str) -> Artefact:
        names = [entry for entry in published() if entry.partition("/")[0] == name.partition("/")[0]]
        place = names.index(name)
        settings: dict[str, Any] = {"verdict": {0: True, 1: False}.get(place)}
        settings |= {"unknown": 1} if place == 2 else {}
        made = Artefact(published_as(name), "training", decided, checks=tuple)
        vars(made)["settings"] = dict.fromkeys(("smoke", "small", "gpu", "paper"), settings)
        return made

    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(module, "artefact_of", artefact)


@pytest.mark.usefixtures("_of_the_command")
def test_a_failing_claim_is_no_error_and_an_error_does_not_stop(tmp_path: Path, capsys: Capture) -> None:
    names = [name for name in published() if name.startswith("gamma/")]
    assert main(["reproduce", names[1], "--out", str(tmp_path)]) == 0
    assert main(["reproduce", "--all", "--paper", "gamma", "--out", str(tmp_path)]) == 1
    # The networks were not of the paper's kind, so that the one that fails contradicts nothing.
    assert f"1 reproduced, {len(names) - 2} not seen here, 1 error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("reproduce", "Expected ids of artefacts, such as fixup/table-1, or --all"),
        ("reproduce fixup/fixup fixup/tabel-1", "No artefact has the id 'fixup/tabel-1'. Did you mean"),
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


@pytest.mark.parametrize("budget", BUDGETS)
def test_settings_fit_their_functions(budget: Budget) -> None:
    for artefact in artefacts().values():
        settings = artefact.settings[budget]
        runs = () if artefact.trains is None else (None,)
        inspect.signature(artefact.function).bind(None, *runs, **settings)
        assert plain(plain(settings)) == plain(settings)


FILE = '''
import pandas as pd
import torch

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Claim, Estimate, over_draws, within
from normless_papers.networks.seeded_inputs import seeded

def _checks(mean: Estimate) -> list[Claim]:
    return [within("The mean of N(0, 1) is 0, to 0.1.", mean, -0.1, 0.1)]


@artefact("{id}", basis="measurement", checks=_checks)
def mean(context: Context, *, draws: int) -> Evidence:
    """The mean of normal numbers."""
    with seeded(context.seed):
        found = over_draws(torch.randn(draws).tolist())
    table = pd.DataFrame([{{"quantity": "mean", "value": found.mean}}])
    return Evidence(table, found, {{"draws": draws}}, on=("quantity",))


def plain() -> int:
    return 0
'''
ENTRY = {
    "claim": "The mean is 0.",
    "title": "A lemma",
    "published": {"mean": 0.0},
    "budgets": {"smoke": {"draws": 4000}, "small": {"draws": 10}, "paper": {"draws": 10}},
}


def test_an_artefact_of_a_sixth_paper_takes_two_files(tmp_path: Path) -> None:
    """It is reproduced, stored and shown as those of the five."""
    out, name, path = tmp_path / "out", f"gauss/{tmp_path.name}", tmp_path / "lemma.py"
    path.write_text(FILE.format(id=name))
    path.with_suffix(".yaml").write_text(json.dumps({name: ENTRY}))
    result = reproduce(f"{path}:mean", out=out)
    assert (result.error, result.id, result.verdict, result.basis) == ("", name, "reproduced", "measurement")
    assert result.beside["value_published"].tolist() == [0.0]
    assert name in write_pages_of(out)[1].read_text("utf-8")
    # Once its file has been read, its id finds it as well.
    assert reproduce(name, out=out).to_dict() == result.to_dict()
    with pytest.raises(UnknownArtefactError, match=r"put @artefact\(...\) above"):
        artefact_of(f"{path}:plain")
