"""An artefact of a sixth paper takes two files: its measurement and checks, and its claim, numbers and budgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normless.cli import main
from normless_papers.artefact import ARTEFACTS, artefact_of
from normless_papers.pages.site import write_pages_of
from normless_papers.published import UnknownArtefactError
from normless_papers.results.reproduce import reproduce
from normless_papers.results.storage import stored

FILE = '''
import pandas as pd
import torch

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, over_draws, within
from normless_papers.networks.seeded_inputs import seeded

def _checks(mean: Estimate) -> list[Check]:
    return [within("The mean of N(0, 1) is 0, to 0.1.", mean, -0.1, 0.1)]


@artefact("{id}", basis="measurement", checks=_checks)
def mean(context: Context, *, draws: int) -> Evidence:
    """The mean of normal numbers."""
    with seeded(context.seed):
        found = over_draws(torch.randn(draws).tolist())
    table = pd.DataFrame([{{"quantity": "mean", "value": found.mean}}])
    return Evidence(table, found, {{"draws": draws}}, on=("quantity",))
'''
ENTRY = {
    "claim": "The mean is 0.",
    "title": "A lemma",
    "published": {"mean": 0.0},
    "budgets": {"smoke": {"draws": 4000}, "small": {"draws": 10}, "paper": {"draws": 10}},
}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """FILE.py:NAME of an artefact, with its entry in the YAML file beside it."""
    path = tmp_path / "lemma.py"
    id_of_test = f"gauss/{tmp_path.name}"
    path.write_text(FILE.format(id=id_of_test))
    path.with_suffix(".yaml").write_text(json.dumps({id_of_test: ENTRY}))
    return f"{path}:mean"


def test_it_is_reproduced_stored_and_shown(source: str, tmp_path: Path) -> None:
    out, name = tmp_path / "out", f"gauss/{tmp_path.name}"
    result = reproduce(source, out=out)
    assert (result.error, result.id, result.verdict, result.basis) == ("", name, "reproduced", "measurement")
    assert result.beside["value_published"].tolist() == [0.0]
    assert ARTEFACTS[name].published.claim == "The mean is 0."
    (back,) = stored(out)
    assert back.to_dict() == result.to_dict()
    assert name in write_pages_of(out)[1].read_text("utf-8")
    # Once its file has been read, its id finds it as well.
    assert reproduce(name, out=out).to_dict() == result.to_dict()


def test_the_command_takes_a_file(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", source, "--out", str(tmp_path / "out"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert (found["id"], found["verdict"], found["published"]) == (
        f"gauss/{tmp_path.name}",
        "reproduced",
        [{"quantity": "mean", "value": 0.0}],
    )


def test_a_function_without_the_decorator_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("def mean():\n    return 0\n")
    with pytest.raises(UnknownArtefactError, match=r"put @artefact\(...\) above"):
        artefact_of(f"{path}:mean")
    with pytest.raises(UnknownArtefactError, match="No artefact has the id"):
        artefact_of("gauss/lemma-2")
