"""Every artefact has its entry beside its module and takes its settings at every budget."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import normless_papers
from normless_papers.artefact import ARTEFACTS, artefacts
from normless_papers.budgets import BUDGETS
from normless_papers.published import PAPERS, entries_of, published
from normless_papers.results.reproduction import plain

PACKAGE = Path(normless_papers.__file__).parent


def test_every_published_artefact_is_registered() -> None:
    names = list(published())
    assert list(artefacts()) == names == list(ARTEFACTS)[: len(names)]
    assert {artefact.published.id for artefact in artefacts().values()} == set(names)


@pytest.mark.parametrize("paper", PAPERS)
def test_entries_lie_beside_the_module_that_registers_them(paper: str) -> None:
    """Each file can be read with the shared efforts alone, and no entry is in two files."""
    efforts = (PACKAGE / "efforts.yaml").read_text(encoding="utf-8")
    home = {}
    for path in (PACKAGE / paper.replace("-", "_")).glob("*.yaml"):
        for name in entries_of(f"{efforts}\n{path.read_text(encoding='utf-8')}"):
            assert name not in home
            home[name] = path.stem
    assert sorted(home) == sorted(name for name in published() if published()[name].paper == paper)
    for name, stem in home.items():
        _, folder, module = artefacts()[name].__module__.split(".")
        # Functions that register similar artefacts of both papers of De & Smith are in `experiments`.
        assert module == stem or folder == "experiments", name


@pytest.mark.parametrize("budget", BUDGETS)
def test_settings_fit_their_functions(budget: str) -> None:
    for name, artefact in artefacts().items():
        settings = artefact.settings[budget]  # type: ignore[index]
        try:
            inspect.signature(artefact.function).bind(None, **settings)
        except TypeError as error:
            pytest.fail(f"{name} at {budget}: {error}")
        assert plain(plain(settings)) == plain(settings)
