"""The page of a folder of results says what is in it, and leads from one artefact to another."""

from __future__ import annotations

import math
import re
import shutil
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from synthetic_results import fill, made_up

from normless_lab.plots import heat_map, lines, save_svg
from normless_papers.pages.site import page_of, write_pages_of
from normless_papers.pages.tables import table_of
from normless_papers.published import PAPERS, published
from normless_papers.results.storage import FIGURE, save, stored


def test_every_artefact_is_there_with_its_paper(tmp_path: Path) -> None:
    names = fill(tmp_path)
    page = page_of(list(stored(tmp_path)), tmp_path)
    assert [card.id for card in page.cards] == names == list(published())
    assert [(paper.key, f"{paper.authors}, {paper.work}") for paper in page.papers] == list(PAPERS.items())
    assert all(not paper.not_run for paper in page.papers)
    assert page.finding.startswith("Of 122 artefacts at the smoke budget, 41 hold, 41 fail, 40 are inconclusive.")
    assert page.budgets == ["smoke", "small"]
    assert all(result.svg.startswith("<svg") for card in page.cards for result in card.results)


def test_a_page_for_each_paper_whose_links_lead_somewhere(tmp_path: Path) -> None:
    fill(tmp_path, [name for name in published() if name.startswith(("fixup/", "zeroinit/"))])
    pages = {path.name: path.read_text("utf-8") for path in write_pages_of(tmp_path)}
    assert list(pages) == ["index.html", "zeroinit.html", "fixup.html"]
    ids = {name: re.findall(r'\sid="([^"]+)"', text) for name, text in pages.items()}
    for name, text in pages.items():
        assert "://" not in text
        assert len(ids[name]) == len(set(ids[name]))
        links = [unescape(link).partition("#") for link in re.findall(r'\shref="([^"]+)"', text)]
        assert links
        for file, _, fragment in links:
            assert not fragment or fragment in ids[file or name]
            assert (file or name) in pages


@pytest.mark.slow
def test_every_page_of_all_artefacts_is_small(tmp_path: Path) -> None:
    """With a figure of 2560 cells, as a heat map of examples and classes has, or a curve of 2000 points in each."""
    fill(tmp_path)
    cells = pd.DataFrame([{"x": x, "y": y, "value": x * y % 7} for x in range(128) for y in range(20)])
    curve = pd.DataFrame({"x": range(2000), "y": [math.sin(place / 30) for place in range(2000)], "scheme": "fixup"})
    for name, axes in (
        ("cells", heat_map(cells, x="x", y="y", value="value")),
        ("curve", lines(curve, x="x", y="y")),
    ):
        save_svg(axes, tmp_path / f"{name}.svg")
    for place, path in enumerate(sorted(tmp_path.glob(f"artefacts/*/*/*/{FIGURE}"))):
        shutil.copy(tmp_path / ("cells.svg", "curve.svg")[place % 2], path)
    sizes = {path.name: path.stat().st_size for path in write_pages_of(tmp_path)}
    assert max(sizes.values()) < 1e6


def test_artefacts_of_the_same_runs_name_each_other(tmp_path: Path) -> None:
    for name, runs in (("fixup/table-1", ("a", "b")), ("fixup/table-2", ("b",)), ("fixup/figure-3", ("c",))):
        save(made_up(name, runs=runs), None, tmp_path)
    page = page_of(list(stored(tmp_path)), tmp_path)
    shared = {card.id: list(card.results[0].same_runs) for card in page.cards}
    assert shared == {"fixup/table-1": ["fixup/table-2"], "fixup/table-2": ["fixup/table-1"], "fixup/figure-3": []}


def test_an_error_and_its_sentence_are_shown(tmp_path: Path) -> None:
    save(made_up("fixup/table-1", error="No <memory> was left."), None, tmp_path)
    front, page = (path.read_text("utf-8") for path in write_pages_of(tmp_path, tmp_path / "elsewhere" / "page.html"))
    assert "No &lt;memory&gt; was left." in page
    assert "Of 1 artefacts at the smoke budget, 1 ended in an error." in front


def test_published_and_measured_of_a_quantity_are_neighbours() -> None:
    name = "zeroinit/table-1"
    measured = pd.DataFrame([{**row, "seconds": 0.123456} for row in published()[name].rows])
    key = str(measured.columns[0])
    table, left_out = table_of(made_up(name, measured=measured, on=(key,)))
    assert table is not None
    assert left_out == ""
    headings = [column.name for column in table.columns]
    assert headings[0] == key.replace("_", " ")
    assert headings[-1] == "seconds"
    for first, second in zip(headings[1:-1:2], headings[2:-1:2], strict=True):
        assert (first.removesuffix(", published"), second) == (second.removesuffix(", measured"), second)
    assert [row[-1] for row in table.rows] == ["0.1235"] * len(measured)
    assert len(table.rows) == len(measured)
