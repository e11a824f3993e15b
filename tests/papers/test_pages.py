"""The pages of a folder of results: what is in them, links between artefacts, and texts of other people as texts."""

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
from papers_helpers import fill, result_of

from normless.saving import digest_of_values
from normless_lab.plots import VERDICT_INKS, heat_map, lines, save_svg
from normless_lab.plots.page import Column, Table
from normless_lab.plots.palette import PAPER
from normless_papers.claims import Check
from normless_papers.cli.text import tabular
from normless_papers.pages.headline import Decided, headlines
from normless_papers.pages.site import finding_of, papers_of, render, write_pages_of
from normless_papers.pages.tables import as_text, row_of, table_of
from normless_papers.published import PAPERS, published
from normless_papers.results.reproduction import Reproduction, ResultError
from normless_papers.results.storage import FIGURE, RESULT, folder_of, save, stored

HOSTILE = '</p></style><script>steal()</script><img src=http://evil.invalid/i onerror="steal()">"\'><b id=evil>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the results of two papers, one of them an error."""
    folder = tmp_path_factory.mktemp("results")
    fill(folder, [name for name in published() if name.startswith(("fixup/", "zeroinit/"))])
    save(result_of("fixup/table-3", error="No <memory> was left."), None, folder)
    return {path.name: path.read_text("utf-8") for path in write_pages_of(folder)}


def test_every_artefact_is_there_with_its_paper() -> None:
    results = [result_of(name) for name in published()]
    papers = papers_of(results)
    assert [card.entry.id for paper in papers for card in paper.cards] == list(published())
    assert {paper.key: f"{paper.authors}, {paper.work}" for paper in papers} == PAPERS
    assert not any(paper.not_run for paper in papers)
    assert finding_of([*results[:2], result_of("fixup/table-1", "small", "fails")]) == (
        "Of 2 artefacts at the smoke budget: 2 reproduced (2 in demonstrations). "
        "Of 1 artefacts at the small budget: 1 not seen here."
    )


def test_a_page_for_each_paper_whose_links_lead_somewhere(pages: dict[str, str]) -> None:
    readers = {name: assert_stands_alone(text) for name, text in pages.items()}
    assert list(readers) == ["index.html", "zeroinit.html", "fixup.html"]
    ids = {name: reader.attributes("id") for name, reader in readers.items()}
    for name, reader in readers.items():
        for file, _, fragment in (link.partition("#") for link in reader.attributes("href")):
            assert (file or name) in pages
            assert not fragment or fragment in ids[file or name]
        assert {*reader.attributes("aria-labelledby")} <= {*ids[name]}
        tags = Counter(tag for tag, _ in reader.tags)
        assert tags["main"] == tags["h1"] == tags["header"] == tags["footer"] == 1
        assert (tags["form"] > 0) == (name != "index.html")
        levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
        assert all(later <= former + 1 for former, later in pairwise(levels))
    assert {"index.html", "#fixup/table-1"} <= {*readers["fixup.html"].attributes("href")}
    assert "No <memory> was left." in readers["fixup.html"].text
    assert "1 error" in readers["index.html"].text


def test_a_headline_has_its_figure_and_its_refutation() -> None:
    headline = next(headline for headline in headlines() if headline.paper == "fixup")
    name = next(iter(headline.checks))
    result = result_of(name, "small")
    row = Decided(headline, [result], [*result.checks, Check("It is below.", "fails", {"value": 3.0})], [])
    written = render([result], {(name, "small"): "IMAGE"}, [row])
    own = " ".join(Reader(written["fixup.html"]).text.split())
    for words in (headline.claim, headline.printed, "value 3", headline.contradicted_if, row.command):
        assert " ".join(words.split()) in own
    assert f"fixup.html#{headline.anchor}" in Reader(written["index.html"]).attributes("href")
    assert own.count("IMAGE") == 1
    assert f"#{headline.anchor}" in Reader(written["fixup.html"]).attributes("href")


def test_artefacts_of_the_same_runs_name_each_other() -> None:
    runs = {"fixup/table-1": ("a", "b"), "fixup/table-2": ("b",), "fixup/figure-3": ("c",)}
    text = Reader(render([result_of(name, runs=own) for name, own in runs.items()], {})["fixup.html"]).text
    shared = re.findall(r"Rests on training runs that\s+(\S+)\s+shares", text)
    assert sorted(shared) == ["fixup/table-1", "fixup/table-2"]


def test_published_and_measured_of_a_quantity_are_neighbours() -> None:
    name = "zeroinit/table-1"
    measured = pd.DataFrame([{**row, "seconds": 0.123456} for row in published()[name].rows])
    key = str(measured.columns[0])
    table, left_out = table_of(result_of(name, measured=measured, on=(key,)))
    assert table is not None
    assert left_out == ""
    first, *both, last = (column.name for column in table.columns)
    assert (first, last) == (key.replace("_", " "), "seconds")
    for published_, measured_ in zip(both[::2], both[1::2], strict=True):
        assert published_.removesuffix(", published") == measured_.removesuffix(", measured")
    assert [row[-1] for row in table.rows] == ["0.1235"] * len(measured)


NAMES = ["model", "accuracy, published", "accuracy, measured", "deviation"]
ROWS = [["small", "83.5", "51.1", "0.4"], ["medium", "82.9", "–", "–"], ["large", "82.0", "50.2", "–"]]
TABLE = Table("Published beside measured", [Column(name, numeric=name != "model") for name in NAMES], ROWS)


def test_a_table_that_is_too_wide_for_a_terminal_is_turned() -> None:
    assert [line.split() for line in tabular(TABLE, 80).splitlines()[1:]] == ROWS
    turned = tabular(TABLE, 38).splitlines()
    assert [line.split() for line in turned] == [
        ["small", "large"],
        ["accuracy,", "published", "83.5", "82.0"],
        ["accuracy,", "measured", "51.1", "50.2"],
        ["deviation", "0.4", "–"],
        [],
        ["Published", "and", "not", "measured:", "1", "more."],
    ]
    assert len({len(line) for line in turned[:4]}) == 1
    narrow = tabular(TABLE, 30).splitlines()
    ends = ["small", "83.5", "51.1", "0.4", "large", "82.0", "50.2"]
    assert [line.split()[-1] for line in narrow[:8] if line] == ends


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("<!-- gone", "&lt;!-- gone"),
        ("![x](http://elsewhere)", "![x]\\(http://elsewhere)"),
        ("[x][y] and [x]: z", "[x]\\[y] and [x]\\: z"),
        ("a\n| b |\n# c", "a | b | # c"),
        ("p < 0.05, a <= b, [0.1, 0.2]", "p < 0.05, a <= b, [0.1, 0.2]"),
    ],
)
def test_texts_in_markdown_stay_texts(text: str, escaped: str) -> None:
    assert as_text(text) == escaped
    assert row_of([as_text(text)]).count("\n") == 0


def hostile() -> Reproduction:
    result = replace(
        result_of("fixup/table-1"),
        checks=(Check(HOSTILE, "holds", {HOSTILE: 1.0}),),
        setup={HOSTILE: HOSTILE},
        remarks=(HOSTILE,),
        figure=HOSTILE,
        provenance=dict.fromkeys((HOSTILE, "date", "machine"), HOSTILE),
    )
    return replace(result, measured=result.measured.assign(**{HOSTILE: HOSTILE}))


def test_texts_of_a_hostile_result_are_texts(tmp_path: Path) -> None:
    save(hostile(), None, tmp_path)
    _, page = write_pages_of(tmp_path)
    reader = Reader(page.read_text("utf-8"))
    assert HOSTILE in reader.text
    assert "evil" not in reader.attributes("id")
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in reader.tags}


def test_a_result_cannot_name_another_folder_nor_a_page_take_anothers_place(tmp_path: Path) -> None:
    save(result_of("fixup/table-1"), None, tmp_path)
    with pytest.raises(ResultError, match=r"fixup\.html"):
        write_pages_of(tmp_path, tmp_path / "fixup.html")
    path = folder_of(tmp_path, "fixup/table-1", "smoke") / RESULT
    for change in ({"id": "fixup/table-2"}, {"budget": "../../../.."}):
        values = result_of("fixup/table-1").to_dict() | {"files": {}} | change
        path.write_text(json.dumps(values | {"digest": digest_of_values(values)}))
        with pytest.raises(ResultError, match="expected the result of fixup/table-1 at smoke"):
            list(stored(tmp_path))


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
    fill(tmp_path, published())
    cells = pd.DataFrame([{"x": x, "y": y, "value": x * y % 7} for x in range(128) for y in range(20)])
    curve = pd.DataFrame({"x": range(2000), "y": [math.sin(place / 30) for place in range(2000)], "scheme": "fixup"})
    save_svg(heat_map(cells, x="x", y="y", value="value"), tmp_path / "0.svg")
    save_svg(lines(curve, x="x", y="y"), tmp_path / "1.svg")
    for place, path in enumerate(sorted(tmp_path.glob(f"artefacts/*/*/*/{FIGURE}"))):
        shutil.copy(tmp_path / f"{place % 2}.svg", path)
    assert max(path.stat().st_size for path in write_pages_of(tmp_path)) < 2e6
