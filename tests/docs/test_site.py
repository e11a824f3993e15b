"""The site: its notebooks and its front page."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from notebooks_of_tutorials import REPOSITORY, TUTORIALS, notebook_of

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return [text for found, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_notebook_of_a_tutorial_has_its_code_and_links_that_lead_to_the_repository(page: Path) -> None:
    notebook = nbformat.reads(notebook_of(page), as_version=4)  # type: ignore[no-untyped-call]
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in cells[1:] if cell[0] not in "%!"] == [text.strip() for text in blocks(page, "python")]
    targets = re.findall(r"\]\(([^)#]+)", notebook_of(page).replace(f"{REPOSITORY}/blob/main/", "here:"))
    assert all("://" in target or (ROOT / target.removeprefix("here:")).is_file() for target in targets)


def test_the_front_page_has_the_code_of_the_readme() -> None:
    (shown,) = blocks(ROOT / "docs" / "index.md", "python")
    assert shown == blocks(ROOT / "README.md", "python")[0], "the README's code is run by its test"
