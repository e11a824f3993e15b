"""The committed rows of runs make the committed front page and the page of results, without training."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from normless_papers.artefact import MissingRunsError
from normless_papers.pages.headline import headlines
from normless_papers.pages.site import write_pages_of
from normless_papers.results.reproduction import ResultError
from normless_papers.results.run_file import rebuilt

COMMITTED = Path(__file__).parents[2] / "docs" / "reproduction" / "runs.parquet"


def test_the_pages_say_what_the_committed_ones_do(tmp_path: Path) -> None:
    """Of these the claims; date, machine and seconds of the checks are those of the rebuilding."""
    with rebuilt(COMMITTED) as folder:
        pages = write_pages_of(folder, tmp_path / "claims.html")
    for path in pages:
        assert _claims(path) == _claims(COMMITTED.with_name(path.name))
    assert sum(len(_claims(path)) for path in pages[1:]) == len(headlines())


def _claims(path: Path) -> list[str]:
    """The claims on a page, without their figures."""
    text = re.sub(r"<svg.*?</svg>|<img[^>]*>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(
        r'<section class="headline".*?</section>|<table class="summary claims">.*?</table>', text, re.DOTALL
    )


def test_without_its_runs_nothing_is_trained(tmp_path: Path) -> None:
    table = pd.read_parquet(COMMITTED)
    table[table["kind"] == "artefact"].to_parquet(tmp_path / "none.parquet")
    with (
        pytest.raises(MissingRunsError, match="runs of skipinit/table-1 are missing"),
        rebuilt(tmp_path / "none.parquet"),
    ):
        pass


def test_a_changed_number_is_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.parquet"
    table = pd.read_parquet(COMMITTED)
    table.loc[0, "seconds"] += 1e-9
    table.to_parquet(file)
    with pytest.raises(ResultError, match="damaged after it was written"), rebuilt(file):
        pass
