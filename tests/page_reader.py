"""A reader of HTML for the tests of pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects tags with their attributes, and the text outside style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._within = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("style", "script"):
            self.text += data

    def attributes(self, name: str) -> list[str]:
        """The values of an attribute of all tags."""
        return [str(attributes[name]) for _, attributes in self.tags if name in attributes]


def assert_stands_alone(page: str) -> Reader:
    """A page loads nothing: its images are within it, its ids are unique, each image has a description."""
    reader = Reader(page)
    assert not {tag for tag, _ in reader.tags} & {"link", "iframe", "object", "embed", "base"}
    assert all(source.startswith("data:image/svg+xml;base64,") for source in reader.attributes("src"))
    assert not set(re.findall(r"\son\w+=", page))
    assert "://" not in page
    assert "@import" not in page
    ids = reader.attributes("id")
    assert len(ids) == len(set(ids))
    assert all(attributes["alt"] for tag, attributes in reader.tags if tag == "img")
    return reader
