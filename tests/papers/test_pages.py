"""The pages of a folder of results: what is in it, links between artefacts, and texts of other people as texts."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from page_reader import Reader, assert_stands_alone
from synthetic_results import fill, made_up

from normless.saving import digest_of_values
from normless_lab.plots import VERDICT_INKS, heat_map, lines, save_svg
from normless_lab.plots.palette import PAPER
from normless_papers.claims import Check
from normless_papers.pages.headline import Decided, headlines
from normless_papers.pages.site import finding_of, papers_of, render, write_pages_of
from normless_papers.pages.tables import table_of
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction, ResultError
from normless_papers.results.storage import FIGURE, RESULT, folder_of, save, stored

HOSTILE = '</p></style><script>steal()</script><img src=http://evil.invalid/i onerror="steal()">"\'><b id=evil>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the results of two papers, one of them an error."""
    folder = tmp_path_factory.mktemp("results")
    fill(folder, [name for name in published() if name.startswith(("fixup/", "zeroinit/"))])
    save(made_up("fixup/table-3", error="No <memory> was left."), None, folder)
    return {path.name: path.read_text("utf-8") for path in write_pages_of(folder)}


def test_every_artefact_is_there_with_its_paper() -> None:
    results = [made_up(name) for name in published()]
    papers = papers_of(results)
    assert [card.entry.id for paper in papers for card in paper.cards] == list(published())
    assert {paper.key: f"{paper.authors}, {paper.work}" for paper in papers} == PAPERS
    assert not any(paper.not_run for paper in papers)
    assert finding_of([*results[:2], made_up("fixup/table-1", "small", "fails")]) == (
        "Of 2 artefacts at the smoke budget: 2 reproduced (2 in demonstrations). "
        "Of 1 artefacts at the small budget: 1 not seen here."
    )


def test_a_page_for_each_paper_whose_links_lead_somewhere(pages: dict[str, str]) -> None:
    readers = {name: assert_stands_alone(text) for name, text in pages.items()}
    assert list(readers) == ["index.html", "zeroinit.html", "fixup.html"]
    ids = {name: reader.attributes("id") for name, reader in readers.items()}
    for name, reader in readers.items():
        links = [link.partition("#") for link in reader.attributes("href")]
        assert links
        for file, _, fragment in links:
            assert (file or name) in pages
            assert not fragment or fragment in ids[file or name]
        labels = set(re.findall(r'aria-labelledby="([^"]+)"', pages[name]))
        assert labels <= set(ids[name])
    assert {"index.html", "#fixup/table-1"} <= set(readers["fixup.html"].attributes("href"))
    assert "No <memory> was left." in readers["fixup.html"].text
    assert "1 error" in readers["index.html"].text


def test_they_can_be_heard(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        reader = Reader(text)
        tags = Counter(tag for tag, _ in reader.tags)
        assert tags["main"] == tags["h1"] == tags["header"] == tags["footer"] == 1
        filters = {"search", "status"} & set(reader.attributes("role"))
        assert filters == (set() if name == "index.html" else {"search", "status"})
        levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
        assert all(later <= former + 1 for former, later in pairwise(levels))
    assert pages["fixup.html"].count("<img") > 10


def test_a_headline_has_its_figure_and_its_refutation() -> None:
    headline = next(headline for headline in headlines() if headline.paper == "fixup")
    name = next(iter(headline.checks))
    result = made_up(name, "small")
    row = Decided(headline, [result], [*result.checks, Check("It is below.", "fails", {"value": 3.0})], [])
    written = render([result], {(name, "small"): "IMAGE"}, [row])
    own = Reader(written["fixup.html"]).text
    for words in (headline.claim, headline.printed, "value 3", "It is below.", headline.contradicted_if, row.command):
        assert " ".join(words.split()) in " ".join(own.split())
    assert f'href="fixup.html#{headline.anchor}"' in written["index.html"]
    assert own.count("IMAGE") == 1
    assert f'Its figure stands <a href="#{headline.anchor}">' in written["fixup.html"]


def test_artefacts_of_the_same_runs_name_each_other() -> None:
    runs = {"fixup/table-1": ("a", "b"), "fixup/table-2": ("b",), "fixup/figure-3": ("c",)}
    text = Reader(render([made_up(name, runs=own) for name, own in runs.items()], {})["fixup.html"]).text
    shared = re.findall(r"Rests on training runs that\s+(\S+)\s+shares", text)
    assert sorted(shared) == ["fixup/table-1", "fixup/table-2"]


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


def test_texts_of_a_hostile_result_are_texts(tmp_path: Path) -> None:
    save(hostile(), None, tmp_path)
    _, page = write_pages_of(tmp_path)
    reader = Reader(page.read_text("utf-8"))
    assert HOSTILE in reader.text
    assert "evil" not in reader.attributes("id")
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in reader.tags}


def hostile() -> Reproduction:
    result = replace(
        made_up("fixup/table-1"),
        checks=(Check(HOSTILE, "holds", {HOSTILE: 1.0}),),
        setup={HOSTILE: HOSTILE},
        remarks=(HOSTILE,),
        figure=HOSTILE,
        provenance=dict.fromkeys((HOSTILE, "date", "machine"), HOSTILE),
    )
    return replace(result, measured=result.measured.assign(**{HOSTILE: HOSTILE}))


def test_a_result_cannot_name_another_folder(tmp_path: Path) -> None:
    save(made_up("fixup/table-1"), None, tmp_path)
    path = folder_of(tmp_path, "fixup/table-1", "smoke") / RESULT
    for change in ({"id": "fixup/table-2"}, {"budget": "../../../.."}):
        values = made_up("fixup/table-1").to_dict() | {"files": {}} | change
        path.write_text(json.dumps(values | {"digest": digest_of_values(values)}))
        with pytest.raises(ResultError, match="expected the result of fixup/table-1 at smoke"):
            list(stored(tmp_path))


def test_the_front_page_cannot_be_that_of_a_paper(tmp_path: Path) -> None:
    save(made_up("fixup/table-1"), None, tmp_path)
    with pytest.raises(ResultError, match=r"fixup\.html"):
        write_pages_of(tmp_path, tmp_path / "fixup.html")


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_verdicts_can_be_read_on_paper(ground: str) -> None:
    """Contrast by WCAG 2.1, relative luminance; 4.5 is its level AA for text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ink in VERDICT_INKS.values():
        bright, dark = sorted((luminance(getattr(ink, ground)), luminance(getattr(PAPER, ground))), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.slow
def test_every_page_of_all_artefacts_is_small(tmp_path: Path) -> None:
    """Each artefact has a heat map of 2560 cells, or a curve of 2000 points."""
    fill(tmp_path)
    cells = pd.DataFrame([{"x": x, "y": y, "value": x * y % 7} for x in range(128) for y in range(20)])
    curve = pd.DataFrame({"x": range(2000), "y": [math.sin(place / 30) for place in range(2000)], "scheme": "fixup"})
    save_svg(heat_map(cells, x="x", y="y", value="value"), tmp_path / "0.svg")
    save_svg(lines(curve, x="x", y="y"), tmp_path / "1.svg")
    for place, path in enumerate(sorted(tmp_path.glob(f"artefacts/*/*/*/{FIGURE}"))):
        shutil.copy(tmp_path / f"{place % 2}.svg", path)
    assert max(path.stat().st_size for path in write_pages_of(tmp_path)) < 2e6
