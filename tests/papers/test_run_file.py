"""The committed rows of runs make the committed front page and the page of results, without training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from normless_lab.sweeps import MissingRunsError
from normless_papers.pages.headline import headlines
from normless_papers.pages.site import write_pages_of
from normless_papers.results.reproduction import ResultError
from normless_papers.results.run_file import rebuilt, write_runs

COMMITTED = Path(__file__).parents[2] / "docs" / "reproduction" / "runs.parquet"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with rebuilt(COMMITTED) as out:
        yield out


@pytest.fixture(scope="module")
def again(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The file written anew, and its number of runs."""
    path = tmp_path_factory.mktemp("written") / "again.parquet"
    return path, write_runs(folder, path)


def test_the_pages_have_the_claims_and_figures_and_say_what_the_committed_ones_do(
    folder: Path, tmp_path: Path
) -> None:
    """Of these the claims; date, machine and seconds of the checks are those of the rebuilding."""
    pages = write_pages_of(folder, tmp_path / "claims.html")
    front, *papers = [path.read_text(encoding="utf-8") for path in pages]
    assert len(papers) == len({headline.paper for headline in headlines()})
    assert "<img" not in front
    assert all("<img" in text for text in papers)
    for headline in headlines():
        assert headline.claim in unescape(front)
        (page,) = [unescape(text) for text in papers if headline.claim in unescape(text)]
        assert headline.contradicted_if in page
    for path in pages:
        assert path.stat().st_size < 1e6
        assert _claims(path) == _claims(COMMITTED.with_name(path.name))
    assert sum(len(_claims(path)) for path in pages[1:]) == len(headlines())


def _claims(path: Path) -> list[str]:
    """The claims on a page, without their figures."""
    text = re.sub(r"<svg.*?</svg>|<img[^>]*>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(
        r'<section class="headline".*?</section>|<table class="summary claims">.*?</table>', text, re.DOTALL
    )


@pytest.mark.slow
def test_the_file_written_anew_has_the_same_rows(again: tuple[Path, int]) -> None:
    path, runs = again
    columns = ["hash", "kind", "config", "outcome", "error", "result", "seconds"]
    first, other = (pd.read_parquet(file)[columns] for file in (COMMITTED, path))
    trained = first["kind"] != "artefact"
    assert trained.sum() == runs > 0
    pd.testing.assert_frame_equal(first[trained], other[other["kind"] != "artefact"])
    assert list(first["hash"]) == list(other["hash"])


def test_without_its_runs_nothing_is_trained(tmp_path: Path) -> None:
    table = pd.read_parquet(COMMITTED)
    table[table["kind"] == "artefact"].to_parquet(tmp_path / "none.parquet")
    with (
        pytest.raises(MissingRunsError, match="runs are missing"),
        rebuilt(tmp_path / "none.parquet"),
    ):
        pass


def test_another_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    for write, words in (
        (lambda: None, "normless report DIR --runs"),
        (lambda: path.write_text("no rows"), "is not a file of runs"),
        (lambda: pd.DataFrame({"hash": ["a"]}).to_parquet(path), "is not a file of runs"),
    ):
        write()
        with pytest.raises(ResultError, match=words), rebuilt(path):
            pass


@pytest.mark.slow
def test_a_changed_number_is_told(again: tuple[Path, int], tmp_path: Path) -> None:
    file = tmp_path / "runs.parquet"
    table = pd.read_parquet(again[0])
    table.loc[0, "seconds"] += 1e-9
    table.to_parquet(file)
    with (
        pytest.raises(ResultError, match=r"runs\.parquet .* damaged after it was written"),
        rebuilt(file),
    ):
        pass
