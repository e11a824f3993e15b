"""The page stands alone, says everything it was given, and can be read by machine and screen reader."""

from __future__ import annotations

from html.parser import HTMLParser

import pandas as pd
import pytest

from normless_lab.plots import (
    Column,
    Figure,
    Page,
    Table,
    accuracy_against_depth,
    inline_svg,
    render_page,
)

LOADS = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}


class Reader(HTMLParser):
    """Collects tags with their attributes, the text, and the tags left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page() -> Page:
    runs = pd.DataFrame(
        {"depth": [16, 100], "scheme": "fixup", "outcome": "trained", "test_accuracy": [0.913, 0.872]}
    )
    axes = accuracy_against_depth(runs)
    return Page(
        title="Depth & <normalization>",
        finding="Fixup trains.",
        caution="A small run.",
        figures=[
            Figure(inline_svg(axes, name=name, description=f"about {name}"), f"caption {name}") for name in "ab"
        ],
        tables=[
            Table(
                "Every run",
                [Column("depth", numeric=True), Column("scheme"), Column("test accuracy", numeric=True)],
                [["16", "fixup", "91.3 %"], ["100", "fixup", "87.2 %"]],
                row_headers=2,
            )
        ],
        facts=[("Seed", "0"), ("Versions", "torch 2.15")],
    )


def test_nothing_is_loaded_from_outside(page: Page) -> None:
    text = render_page(page)
    reader = Reader(text)
    loads = [value for _, attributes in reader.tags for name, value in attributes.items() if name in LOADS]
    assert all(value is not None and value.startswith("#") for value in loads)
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "img", "iframe", "object", "embed"}
    assert "@import" not in text
    assert "://" not in text
    assert all(part.startswith("#") for part in text.replace('"', "").replace("'", "").split("url(")[1:])


def test_everything_is_said_and_escaped(page: Page) -> None:
    text = Reader(render_page(page)).text
    for part in (page.title, page.finding, page.caution, "caption a", "caption b", "Seed", "torch 2.15"):
        assert part in text
    for row in page.tables[0].rows:
        for cell in row:
            assert cell in text
    assert "<normalization>" not in render_page(page)


def test_tables_and_figures_are_accessible(page: Page) -> None:
    tags = Reader(render_page(page)).tags
    headers = [attributes for tag, attributes in tags if tag == "th"]
    assert len(headers) == 3 + 2 * 2
    assert [attributes["scope"] for attributes in headers] == ["col"] * 3 + ["row"] * 4
    drawings = [attributes for tag, attributes in tags if tag == "svg"]
    assert [(drawing["role"], drawing["aria-label"]) for drawing in drawings] == [
        ("img", "about a"),
        ("img", "about b"),
    ]
    assert sum(tag == "figcaption" for tag, _ in tags) == 2
    assert ("html", {"lang": "en"}) in tags
    assert any(tag == "meta" and attributes.get("name") == "viewport" for tag, attributes in tags)
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
