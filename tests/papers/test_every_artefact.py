"""Every artefact of the papers' index is carried out by a function that takes its settings at every budget."""

from __future__ import annotations

import inspect

import pytest

from normless_papers.artefact import ARTEFACTS, artefacts
from normless_papers.budgets import BUDGETS
from normless_papers.published import published
from normless_papers.results.reproduction import plain


def test_none_is_missing() -> None:
    assert list(artefacts()) == list(published()) == list(ARTEFACTS)
    assert {one.published.id for one in artefacts().values()} == set(published())


@pytest.mark.parametrize("budget", BUDGETS)
def test_settings_fit_their_functions(budget: str) -> None:
    for name, artefact in artefacts().items():
        settings = artefact.settings[budget]  # type: ignore[index]
        try:
            inspect.signature(artefact.function).bind(None, **settings)
        except TypeError as error:
            pytest.fail(f"{name} at {budget}: {error}")
        assert plain(plain(settings)) == plain(settings)
