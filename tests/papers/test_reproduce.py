"""Carrying out an artefact: what its function gives is kept, what it raises too, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from synthetic_results import figure

from normless.errors import NormlessError
from normless_lab.train import TrainConfig
from normless_lab.train.pauses import TerminatedError
from normless_papers.artefact import Artefact, Context, Evidence
from normless_papers.claims import check
from normless_papers.published import published_as
from normless_papers.results import reproduce as module
from normless_papers.results.reproduce import laboratory_in, reproduce
from normless_papers.results.storage import folder_of, load

NAME = "fixup/equation-1"
Function = Callable[..., Evidence]
Install = Callable[[Function], list[dict[str, Any]]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a function in the place of an artefact's; returns the list of its calls."""

    def put(function: Function, **settings: object) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def counted(context: Context, **asked: object) -> Evidence:
            calls.append({"context": context, **asked})
            return function(context, **asked)

        smoke = settings or {"depth": 4}
        made = Artefact(published_as(NAME), "training", counted, checks=tuple)
        vars(made)["settings"] = {"smoke": smoke, "small": {"depth": 8}, "paper": {"depth": 9}}
        monkeypatch.setattr(module, "artefact_of", lambda name: made)
        return calls

    return put


def evidence(context: Context, *, depth: int) -> Evidence:
    table = pd.DataFrame({"depth": [depth], "drawn": [float(torch.rand(()))]})
    return Evidence(table, (check("It is deep.", depth > 3, depth=depth),), {"depth": depth}, draw=figure)


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
    def failing(context: Context, *, depth: int) -> Evidence:
        raise error

    install(failing)
    result = reproduce(NAME, out=tmp_path)
    assert (result.verdict, result.error) == ("error", sentence)
    assert list((tmp_path / "artefacts").rglob("figure.*")) == []
    install(evidence)
    assert reproduce(NAME, out=tmp_path).verdict == "reproduced"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TerminatedError])
def test_an_interruption_is_one_and_an_older_result_stays(
    tmp_path: Path, install: Install, stop: type[BaseException]
) -> None:
    def interrupted(context: Context, *, depth: int) -> Evidence:
        raise stop

    install(interrupted)
    with pytest.raises(stop):
        reproduce(NAME, out=tmp_path)
    assert load(tmp_path, NAME, "smoke") is None
    install(evidence)
    older = reproduce(NAME, out=tmp_path)
    install(interrupted)
    with pytest.raises(stop):
        reproduce(NAME, out=tmp_path, again=True)
    kept = load(tmp_path, NAME, "smoke")
    assert kept is not None
    assert kept.to_dict() == older.to_dict()


@pytest.mark.slow
def test_runs_are_noted_and_shared(tmp_path: Path, install: Install) -> None:
    config = TrainConfig(
        model="normless:wide_resnet(depth=10, width=1)", data="digits", epochs=1, batch_size=512, device="cpu"
    )

    def training(context: Context, *, depth: int) -> Evidence:
        (row,) = context.lab.carry_out([config])
        return Evidence(pd.DataFrame({"outcome": [row.outcome]}), (check("It ran.", row.error is None),), {})

    install(training)
    with laboratory_in(tmp_path, 1) as laboratory:
        first = reproduce(NAME, out=tmp_path, laboratory=laboratory)
        again = reproduce(NAME, out=tmp_path, laboratory=laboratory, again=True)
    assert first.runs == again.runs == (config.hash,)
    assert first.verdict == again.verdict == "reproduced"
