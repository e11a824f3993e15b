"""The page of artefacts stands alone, says and escapes everything, and its links lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from artefact_pages import PAPERS, PER_PAPER, card_id, made_up_page

from normless_lab.plots.artefacts import HeadlineRow, render_artefacts
from normless_lab.plots.palette import PAPER, VERDICT_INKS


class Reader(HTMLParser):
    """Collects tags with their attributes and the text outside style and script."""

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
        return [str(attributes[name]) for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return render_artefacts(made_up_page())


@pytest.fixture(scope="module")
def text(pages: dict[str, str]) -> str:
    """The front page."""
    return pages["index.html"]


def test_nothing_is_loaded_from_outside(pages: dict[str, str]) -> None:
    assert list(pages) == ["index.html", *(f"{paper}.html" for paper in PAPERS)]
    for text in pages.values():
        reader = Reader(text)
        assert not {tag for tag, _ in reader.tags} & {"link", "img", "iframe", "object", "embed"}
        assert reader.attributes("src") == []
        assert "://" not in text
        assert "@import" not in text
        assert "{{" not in text
        assert "{%" not in text


def test_links_lead_somewhere_and_ids_are_unique(pages: dict[str, str]) -> None:
    ids = {name: Reader(text).attributes("id") for name, text in pages.items()}
    assert all(len(own) == len(set(own)) for own in ids.values())
    for name, text in pages.items():
        links = Reader(text).attributes("href")
        for link in links:
            file, _, fragment = link.partition("#")
            assert not fragment or fragment in ids[file or name]
            assert (file or name) in pages
        assert not any(link.endswith("#fixup/table-9") for link in links)
        assert set(re.findall(r'aria-labelledby="([^"]+)"', text)) <= set(ids[name])
    assert {"index.html", "#fixup/figure-2", "skipinit.html#skipinit/figure-1"} <= set(
        Reader(pages["fixup.html"]).attributes("href")
    )


def test_everything_is_said_and_escaped(pages: dict[str, str]) -> None:
    said = "".join(Reader(text).text for text in pages.values())
    for words in ("Title 7 <of a figure>", "Claim 23", "No memory was left.", "unicorn5", "50 more rows", "2^-39"):
        assert words in said
    assert not any("<of a figure>" in text for text in pages.values())
    assert "Not carried out: gamma/table-9." in said


def test_a_headline_says_what_would_refute_it(pages: dict[str, str]) -> None:
    row = HeadlineRow(
        "It trains.", "0.1", "A 3 vs B 5, needs A > B", "fails", "refuted", "One check fails.", [card_id(PER_PAPER)],
        paper="fixup", anchor="claim-1", refuted_if="it does not", command="normless reproduce it", budget="smoke",
    )  # fmt: skip
    others = render_artefacts(replace(made_up_page(), headlines=[row]))
    own = Reader(others["fixup.html"]).text
    for words in ("It trains.", "0.1", "needs A > B", "One check fails.", "it does not", "normless reproduce it"):
        assert words in own
    assert "It trains." not in Reader(others["gamma.html"]).text
    assert 'href="fixup.html#claim-1"' in others["index.html"]
    # Its figure stands at the claim, and the artefact leads there.
    assert others["fixup.html"].count("<svg") == pages["fixup.html"].count("<svg")
    assert 'Its figure stands <a href="#claim-1">' in others["fixup.html"]


def test_they_can_be_heard(pages: dict[str, str]) -> None:
    pictures = 0
    for name, text in pages.items():
        reader = Reader(text)
        tags = Counter(tag for tag, _ in reader.tags)
        assert tags["main"] == tags["h1"] == tags["header"] == tags["footer"] == 1
        filters = {"search", "status"} & set(reader.attributes("role"))
        assert filters == (set() if name == "index.html" else {"search", "status"})
        shown = [attributes for tag, attributes in reader.tags if tag == "svg"]
        assert all(one["role"] == "img" and one["aria-label"] for one in shown)
        pictures += len(shown)
        levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
        assert all(later <= former + 1 for former, later in pairwise(levels))
    assert pictures == 32


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
