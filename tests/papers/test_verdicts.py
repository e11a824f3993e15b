"""The pages of verdicts, of silences and of protocols: their rows, and that the committed ones are current."""

from __future__ import annotations

from pathlib import Path

import pytest
from papers_helpers import result_of
from worlds import checks_of

from normless_papers.distance import Distance
from normless_papers.pages.silent import effects, section_of, silences, trained
from normless_papers.pages.verdicts import verdicts_page
from normless_papers.published import PAPERS, published

REPRODUCTION = Path(__file__).parents[2] / "docs" / "reproduction"
FAILED = result_of("fixup/table-1", "gpu", "fails", distance=Distance())


def row(page: str, name: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_artefact_has_a_row_with_its_last_verdict() -> None:
    page = verdicts_page([result_of("fixup/table-1"), FAILED, result_of("fixup/table-4")])
    assert all(row(page, name) for name in published())
    assert row(page, "fixup/table-1")[1:4] == ["training", "gpu", "not seen here"]
    assert row(page, "fixup/table-4")[3] == "reproduced, a demonstration"
    assert row(page, "gamma/table-2")[1:] == ["", "", "not run", "", ""]
    assert row(page, "all")[1:] == ["2", "1", "1 reproduced (1 in demonstrations), 1 not seen here"]


@pytest.mark.parametrize("name", sorted({name for own in silences() for name in own.checks}))
def test_the_words_of_a_silence_find_a_check_of_its_artefact(name: str) -> None:
    (own,) = [entry for entry in silences() if name in entry.checks]
    assert any(own.checks[name] in check.claim for check in checks_of(name, True))


@pytest.mark.parametrize(
    "paper", [pytest.param(paper, marks=() if paper == "fixup" else pytest.mark.slow) for paper in PAPERS]
)
def test_the_page_of_protocols_is_that_of_the_code_and_every_training_has_sentences(paper: str) -> None:
    """`normless report --protocols docs/reproduction/protocols.md` writes it anew."""
    page = (REPRODUCTION / "protocols.md").read_text(encoding="utf-8")
    assert section_of(paper) in page
    assert effects() in page
    assert [name for name in trained(paper) if not published()[name].protocol] == []
