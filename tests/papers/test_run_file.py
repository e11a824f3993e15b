"""The committed rows of runs make the committed front page and the page of results, without training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from normless_papers.front_page import front_page_of
from normless_papers.headline import headlines
from normless_papers.page import write_pages_of
from normless_papers.published import PAPERS
from normless_papers.reproduction import ResultError
from normless_papers.run_file import MissingRunsError, rebuilt, write_runs

COMMITTED = Path(__file__).parents[2] / "docs" / "reproduction" / "runs.parquet"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with rebuilt(COMMITTED) as out:
        yield out


def test_the_committed_front_page_is_that_of_the_committed_runs(folder: Path) -> None:
    assert front_page_of(folder) == COMMITTED.with_name("claims.md").read_text(encoding="utf-8")


def test_the_committed_pages_are_those_of_the_committed_runs(folder: Path, tmp_path: Path) -> None:
    """But for the dates of the figures and of the page."""
    pages = write_pages_of(folder, tmp_path / "claims.html")
    assert [path.name for path in pages] == ["claims.html", *(f"{paper}.html" for paper in PAPERS)]
    for path in pages:
        committed = COMMITTED.with_name(path.name).read_text(encoding="utf-8")
        assert _lasting(path.read_text(encoding="utf-8")) == _lasting(committed), path.name
        assert path.stat().st_size < 1_000_000


def _lasting(page: str) -> list[str]:
    """The claims, verdicts and numbers of a page: what does not depend on when and where it was rebuilt."""
    return re.findall(
        r"<(?:h[1-4]|dd|p|li|td|th)[^>]*>[^\n]*",
        re.sub(r"<footer>.*|<details class=\"how\">.*?</details>", "", page, flags=re.S),
    )


def test_a_page_of_a_paper_has_its_claims_with_figures(folder: Path, tmp_path: Path) -> None:
    front, *papers = write_pages_of(folder, tmp_path / "claims.html")
    texts = {path.stem: unescape(path.read_text(encoding="utf-8")) for path in papers}
    for one in headlines():
        assert one.claim in unescape(front.read_text(encoding="utf-8"))
        own = texts[one.paper].partition(one.claim)[2].partition('class="headline"')[0]
        for part in (one.printed, one.refuted_if, "--budget small", "<svg"):
            assert part in own, (one.claim, part)


def test_the_file_written_anew_has_the_same_rows(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    runs = write_runs(folder, again)
    columns = ["hash", "kind", "config", "outcome", "error", "result", "seconds"]
    one, other = (pd.read_parquet(path)[columns] for path in (COMMITTED, again))
    trained = one["kind"] != "artefact"
    assert trained.sum() == runs > 0
    pd.testing.assert_frame_equal(one[trained], other[other["kind"] != "artefact"])
    assert list(one["hash"]) == list(other["hash"])


def test_without_its_runs_nothing_is_trained(tmp_path: Path) -> None:
    table = pd.read_parquet(COMMITTED)
    table[table["kind"] == "artefact"].to_parquet(tmp_path / "none.parquet")
    with (
        pytest.raises(MissingRunsError, match="some of its training runs are not in the file"),
        rebuilt(tmp_path / "none.parquet"),
    ):
        pass


def test_another_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    with pytest.raises(ResultError, match="normless report DIR --runs"), rebuilt(path):
        pass
    path.write_text("no rows")
    with pytest.raises(ResultError, match="is no file of runs"), rebuilt(path):
        pass
    pd.DataFrame({"hash": ["a"]}).to_parquet(path)
    with pytest.raises(ResultError, match="is no file of runs"), rebuilt(path):
        pass


def test_a_changed_number_is_told(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.parquet"
    write_runs(folder, file)
    table = pd.read_parquet(file)
    table.loc[0, "seconds"] += 1e-9
    table.to_parquet(file)
    with (
        pytest.raises(ResultError, match=r"runs\.parquet is no file of runs .* damaged after it was written"),
        rebuilt(file),
    ):
        pass
