"""The page stands alone and says everything it was given."""

from __future__ import annotations

import pandas as pd
import pytest
from page_reader import assert_stands_alone

from normless_lab.plots import Column, Table, lines
from normless_lab.plots._page import Figure, Page, render_page


@pytest.fixture
def page() -> Page:
    runs = pd.DataFrame({"depth": [16, 100], "test_accuracy": [0.913, 0.872]})
    columns = [Column("depth", numeric=True), Column("scheme"), Column("test accuracy", numeric=True)]
    return Page(
        title="Depth & <normalization>",
        finding="Fixup trains.",
        caution="A small run.",
        figures=[Figure(lines(runs, x="depth", y="test_accuracy"), f"caption {name}") for name in "ab"],
        tables=[Table("Every run", columns, [["16", "fixup", "91.3 %"], ["100", "fixup", "87.2 %"]], row_headers=2)],
        facts=[("Seed", "0"), ("Versions", "torch 2.15")],
    )


def test_a_page_stands_alone_and_says_everything(page: Page) -> None:
    reader = assert_stands_alone(render_page(page))
    cells = [cell for row in page.tables[0].rows for cell in row]
    for part in (page.title, page.finding, page.caution, "caption a", "caption b", "Seed", "torch 2.15", *cells):
        assert part in reader.text
    assert not {tag for tag, _ in reader.tags} & {"script", "normalization"}
