"""The site: its notebooks and its front page."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from notebooks_of_tutorials import NOTEBOOKS, REPOSITORY, TUTORIALS, notebook_of

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return [text for found, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_notebook_of_a_tutorial_has_its_code_and_links_that_lead_to_the_repository(page: Path) -> None:
    path = NOTEBOOKS / f"{page.stem}.ipynb"
    assert path.read_text(encoding="utf-8") == notebook_of(page), "make notebooks"
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]  # type: ignore[no-untyped-call]
    assert [cell for cell in cells[1:] if cell[0] not in "%!"] == [text.strip() for text in blocks(page, "python")]
    targets = re.findall(r"\]\(([^)#]+)", notebook_of(page).replace(f"{REPOSITORY}/blob/main/", "here:"))
    assert all("://" in target or (ROOT / target.removeprefix("here:")).is_file() for target in targets)


def test_notebooks_are_those_of_the_tutorials_and_the_front_page_has_the_code_of_the_readme() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.iterdir()) == [page.stem for page in TUTORIALS]
    (shown,) = blocks(ROOT / "docs" / "index.md", "python")
    assert shown == blocks(ROOT / "README.md", "python")[0], "the README's code is run by its test"
