"""Every artefact has settings at every budget, and one of another paper takes two files."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from normless_papers.artefact import artefact_of, artefacts
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.pages.site import write_pages_of
from normless_papers.published import UnknownArtefactError
from normless_papers.results.reproduce import reproduce
from normless_papers.results.reproduction import plain


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
