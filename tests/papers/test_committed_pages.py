"""The committed pages of docs/reproduction are those of the committed runs, and the guides repeat their counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_reader import Reader

from normless.cli import main
from normless_papers.published import PAPERS

ROOT = Path(__file__).parents[2]
REPRODUCTION = ROOT / "docs" / "reproduction"
RUNS = REPRODUCTION / "runs.parquet"
EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="9pt" height="9pt" viewBox="0 0 9 9"></svg>'
MARKDOWN = {"claims": "claims.md", "silent": "wrong_or_silent.md", "verdicts": "verdicts.md"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages that `make campaign-save` would write."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        # Drawings take most of the time, and are those of a version of matplotlib.
        for name in ("save_svg", "save_png"):
            patch.setattr(f"normless_lab.plots.{name}", lambda axes, path, **_: path.write_text(EMPTY))
        return _written(folder)


def _written(folder: Path) -> Path:
    files = [argument for name, file in MARKDOWN.items() for argument in (f"--{name}", str(folder / file))]
    assert main(["report", "--from", str(RUNS), "--page", str(folder / "claims.html"), *files]) == 0
    return folder


@pytest.mark.parametrize("file", MARKDOWN.values())
def test_the_committed_markdown_is_that_of_the_committed_runs(file: str, written: Path) -> None:
    assert (REPRODUCTION / file).read_text("utf-8") == (written / file).read_text("utf-8")


@pytest.mark.parametrize("file", ["claims.html", *(f"{paper}.html" for paper in PAPERS)])
def test_the_committed_pages_have_the_numbers_of_the_committed_runs(file: str, written: Path) -> None:
    committed, own = (Reader((folder / file).read_text("utf-8")).text for folder in (REPRODUCTION, written))
    assert committed == own


@pytest.mark.parametrize("guide", ["README.md", "docs/reproduction/README.md"])
def test_the_guides_repeat_the_counts(guide: str) -> None:
    paragraphs = (REPRODUCTION / "verdicts.md").read_text("utf-8").split("\n\n")
    (counts,) = (" ".join(own.split()) for own in paragraphs if own.startswith("Of "))
    assert counts in " ".join((ROOT / guide).read_text("utf-8").split())
