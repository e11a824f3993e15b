"""The committed pages of docs/reproduction are those of the committed runs, and the guides repeat their counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_reader import Reader

from normless.cli import main
from normless_papers.pages.verdicts import summary_of
from normless_papers.published import PAPERS
from normless_papers.results.reproduction import stored
from normless_papers.results.run_file import rebuilt

ROOT = Path(__file__).parents[2]
REPRODUCTION = ROOT / "docs" / "reproduction"
RUNS = REPRODUCTION / "runs.parquet"
MARKDOWN = {"claims": "claims.md", "silent": "wrong_or_silent.md", "verdicts": "verdicts.md"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages that `make campaign-save` would write."""
    folder = tmp_path_factory.mktemp("pages")
    files = [argument for name, file in MARKDOWN.items() for argument in (f"--{name}", str(folder / file))]
    assert main(["report", "--from", str(RUNS), "--page", str(folder / "claims.html"), *files]) == 0
    return folder


@pytest.mark.parametrize("file", MARKDOWN.values())
def test_the_committed_markdown_is_that_of_the_committed_runs(file: str, written: Path) -> None:
    assert (REPRODUCTION / file).read_text("utf-8") == (written / file).read_text("utf-8")


@pytest.mark.parametrize("file", ["claims.html", *(f"{paper}.html" for paper in PAPERS)])
def test_the_committed_pages_have_the_numbers_of_the_committed_runs(file: str, written: Path) -> None:
    """Figures are left out, since their drawing is that of a version of matplotlib."""
    committed, own = (Reader((folder / file).read_text("utf-8")).text for folder in (REPRODUCTION, written))
    assert committed == own


@pytest.mark.parametrize("guide", ["README.md", "docs/reproduction/README.md"])
def test_the_guides_repeat_the_counts(guide: str) -> None:
    with rebuilt(RUNS) as folder:
        counts = summary_of(stored(folder))
    assert counts in " ".join((ROOT / guide).read_text("utf-8").split())
