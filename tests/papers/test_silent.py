"""Where the papers are wrong or silent: numbers of results where there are any, and the committed page."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from synthetic_results import made_up
from worlds import gamma, skipinit, understanding_bn, zeroinit

from normless_papers.artefact import artefact_of
from normless_papers.pages.silent import silences, silent_page
from normless_papers.pages.site import render
from normless_papers.published import published

PAGE = Path(__file__).parents[2] / "docs" / "reproduction" / "wrong_or_silent.md"
WORLDS = {**skipinit.WORLDS, **zeroinit.WORLDS, **understanding_bn.WORLDS, **gamma.WORLDS}


def test_every_entry_says_what_the_text_says_why_and_what_was_measured() -> None:
    names = [own.title for own in silences()]
    assert len(names) == len(set(names)) >= 8
    for own in silences():
        assert all((own.where, own.text, own.derivation, own.measured, own.conclusion))
        assert set(own.checks) <= set(published())


@pytest.mark.parametrize("name", sorted({name for own in silences() for name in own.checks}))
def test_its_words_find_a_check_of_the_artefact(name: str, tmp_path: Path) -> None:
    (own,) = [entry for entry in silences() if name in entry.checks]
    claims = [check.claim for check in artefact_of(name).checks(WORLDS[name].published(tmp_path))]
    assert any(own.checks[name] in claim for claim in claims)


def test_numbers_are_those_of_results_and_stated_ones_without_them() -> None:
    (own,) = [entry for entry in silences() if "gamma/figure-6" in entry.checks]
    other = made_up("fixup/table-1")
    assert own.numbers([other]) == [own.measured]
    slope = artefact_of("gamma/figure-6").checks(gamma.WORLDS["gamma/figure-6"].opposite(Path()))[-1]
    results = [replace(made_up("gamma/figure-6", budget), checks=(slope,)) for budget in ("smoke", "small")]
    (words,) = own.numbers([other, *results])
    assert words.startswith("gamma/figure-6 (small, ")
    assert "measured 0 " in words


def test_the_section_stands_on_the_front_page_alone() -> None:
    pages = render([made_up("gamma/figure-6")], {}, [], "index.html")
    assert all(own.title in unescape(pages["index.html"]) for own in silences())
    assert silences()[0].conclusion not in pages["gamma.html"]


def test_the_committed_page_has_every_entry() -> None:
    committed, written = PAGE.read_text(encoding="utf-8"), silent_page([])
    for own in silences():
        for words in (own.title, own.text, own.derivation, own.conclusion):
            assert words in committed
            assert words in written
