"""The page of artefacts stands alone, says and escapes everything, and its links lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from artefact_pages import KINDS, PAPERS, PER_PAPER, card_id, made_up_page

from normless.plots.artefacts import ArtefactsPage, PaperGroup, render_artefacts, write_artefacts
from normless.plots.palette import PAPER, VERDICT_INKS


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
def text() -> str:
    return render_artefacts(made_up_page())


def test_nothing_is_loaded_from_outside(text: str) -> None:
    reader = Reader(text)
    assert not {tag for tag, _ in reader.tags} & {"link", "img", "iframe", "object", "embed"}
    assert reader.attributes("src") == []
    assert "://" not in text
    assert "@import" not in text
    assert "{{" not in text
    assert "{%" not in text


def test_links_lead_somewhere_and_ids_are_unique(text: str) -> None:
    reader = Reader(text)
    ids = reader.attributes("id")
    assert len(ids) == len(set(ids))
    links = reader.attributes("href")
    assert {f"#{card_id(0)}", "#fixup/figure-2", "#fixup", "#artefacts"} <= set(links)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert "#fixup/table-9" not in links
    named = re.findall(r'aria-labelledby="([^"]+)"', text)
    assert set(named) <= set(ids)


def test_everything_is_said_and_escaped(text: str) -> None:
    said = Reader(text).text
    for words in ("Title 7 <of a figure>", "Claim 23", "No memory was left.", "unicorn5", "50 more rows", "2^-39"):
        assert words in said
    assert "<of a figure>" not in text
    assert "Not carried out: gamma/table-9." in said


def test_the_summary_counts(text: str) -> None:
    table = text[text.index('<table class="summary">') : text.index("</table>")]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table[table.index("<tbody>") :], flags=re.DOTALL)
    assert len(rows) == 2 * len(PAPERS)
    smoke = [int(number) for number in re.findall(r'<td class="number[^"]*">(\d+)</td>', rows[0])]
    assert smoke == [2, 2, 2, 2, 1]
    small = [int(number) for number in re.findall(r'<td class="number[^"]*">(\d+)</td>', rows[3])]
    assert small == [3, 0, 0, 0, PER_PAPER + 1 - 3]


def test_the_classes_are_counted_apart(text: str) -> None:
    table = text[text.index('id="bases"') : text.index("</table>", text.index('id="bases"'))]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table[table.index("<tbody>") :], flags=re.DOTALL)
    # Of 24 artefacts every third is a formula, and those are the ones with a second budget, at which all hold.
    counts = [[int(number) for number in re.findall(r'<td class="number[^"]*">(\d+)</td>', row)] for row in rows]
    assert counts == [[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2], [8, 0, 0, 0]]
    assert [re.findall(r'<th scope="row">(\w+)', row) for row in rows] == [
        ["formula"], ["measurement"], ["training"], ["formula"],
    ]  # fmt: skip


def test_choices_are_what_occurs(text: str) -> None:
    selects = re.findall(r'<select id="by-\w+" name="(\w+)">(.*?)</select>', text, flags=re.DOTALL)
    options = {name: re.findall(r"<option>([^<]*)</option>", inside) for name, inside in selects}
    assert options == {
        "paper": list(PAPERS),
        "kind": sorted(KINDS),
        "verdict": list(VERDICT_INKS),
        "budget": ["smoke", "small"],
    }


def test_it_can_be_heard(text: str) -> None:
    reader = Reader(text)
    tags = Counter(tag for tag, _ in reader.tags)
    assert tags["main"] == tags["h1"] == tags["header"] == tags["footer"] == 1
    roles = reader.attributes("role")
    assert "search" in roles
    assert "status" in roles
    pictures = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(pictures) == 32
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(later <= former + 1 for former, later in pairwise(levels))


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


def test_a_page_without_artefacts_is_a_page(tmp_path: Path) -> None:
    page = ArtefactsPage("Title", "Nothing yet.", "", [PaperGroup("fixup", "Zhang", "Fixup", ())])
    path = write_artefacts(page, tmp_path / "deep" / "page.html")
    assert "Nothing yet." in path.read_text("utf-8")
