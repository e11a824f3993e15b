"""The pages of artefacts in a real browser: it opens quietly, filters, searches, and fits every screen and paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from artefact_pages import KINDS, PER_PAPER, card_id, made_up_page

from normless_lab.plots.artefacts import write_artefacts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The page of the second paper, fixup.
PLACES = range(PER_PAPER, 2 * PER_PAPER)
CARDS = PER_PAPER
# Of what a selector finds, as far as it is to be seen: left, top, right, bottom.
BOXES = """selector => [...document.querySelectorAll(selector)].filter(one => one.checkVisibility())
    .map(one => one.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom])"""
WIDE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    front = write_artefacts(made_up_page(), tmp_path_factory.mktemp("page") / "index.html")
    return front.with_name("fixup.html").as_uri()


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Any]:
    """Opens the page with the given settings of the browser; whatever the browser complains of fails the test."""
    contexts, complaints = [], []

    def open_page(fragment: str = "", **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": WIDE} | settings)
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith(address.rpartition("/")[0]) or complaints.append(request.url),
        )
        page.goto(address + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def shown(page: Page) -> list[str]:
    """The ids of the artefacts that are to be seen, in the order of their names."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('article')].filter(one => one.checkVisibility()).map(one => one.id)"
    )
    return sorted(found)


def count(page: Page) -> str:
    return page.get_by_role("status").inner_text()


def test_it_opens_quietly_and_shows_all(opened: Any) -> None:
    page = opened()
    assert page.title() == "Author 1: On fixup"
    assert shown(page) == [card_id(place) for place in PLACES]
    assert count(page) == f"{CARDS} of {CARDS} artefacts"


def test_every_figure_can_be_seen(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Open all").click()
    figures = page.locator("figure svg")
    assert figures.count() == CARDS + len([place for place in PLACES if place % 3 == 0])
    boxes = [one.bounding_box() for one in figures.all()]
    assert all(box is not None and box["width"] > 250 and box["height"] > 150 for box in boxes)
    # A line that is drawn has an extent of its own: its path was not lost.
    drawn = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(s => s.querySelector('g').getBBox().width)"
    )
    assert all(width > 100 for width in drawn)
    page.get_by_role("button", name="Close all").click()
    assert not any(one.is_visible() for one in figures.all())


@pytest.mark.parametrize(
    ("chosen", "places"),
    [
        ({"Kind": "probe"}, [place for place in PLACES if KINDS[place % 3] == "probe"]),
        ({"Verdict": "error"}, [place for place in PLACES if place % 4 == 3]),
        ({"Budget": "small"}, [place for place in PLACES if place % 3 == 0]),
        # Verdict and budget speak of one and the same result.
        ({"Budget": "small", "Verdict": "fails"}, []),
        ({"Kind": "analytic", "Budget": "small", "Verdict": "holds"}, [9, 12, 15]),
    ],
)
def test_filters(opened: Any, chosen: dict[str, str], places: Any) -> None:
    page = opened()
    for label, value in chosen.items():
        page.get_by_label(label, exact=True).select_option(value)
    assert shown(page) == [card_id(place) for place in places]
    assert count(page) == f"{len(places)} of {CARDS} artefacts"
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function(f"document.querySelector('[role=status]').textContent.startsWith('{CARDS} of')")
    assert len(shown(page)) == CARDS


@pytest.mark.parametrize(
    ("words", "places"),
    [("unicorn9", [9]), ("CLAIM 13: doubles", [13]), ("title variance", PLACES), ("unicorn8 unicorn9", [])],
)
def test_search(opened: Any, words: str, places: Any) -> None:
    page = opened()
    page.get_by_label("Search").fill(words)
    assert shown(page) == [card_id(place) for place in places]
    assert count(page) == f"{len(places)} of {CARDS} artefacts"


def test_links_open_what_they_lead_to_even_if_it_is_filtered_away(opened: Any) -> None:
    page = opened("#fixup/figure-1")
    card = page.locator("article[id='fixup/figure-1']")
    assert card.locator("figure").first.is_visible()
    page.get_by_label("Kind", exact=True).select_option(KINDS[PER_PAPER % 3])
    card.get_by_role("link", name="fixup/figure-2").first.click()
    target = page.locator("article[id='fixup/figure-2']")
    target.locator("figure").first.wait_for(state="visible")
    summary = target.locator("summary").first
    assert summary.evaluate("one => one === document.activeElement")
    bar = page.locator("form").bounding_box()
    assert summary.bounding_box()["y"] >= bar["y"] + bar["height"] - 1


def test_the_keyboard_is_enough(opened: Any) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    first = page.locator("article summary").first
    assert first.evaluate("one => one === document.activeElement")
    assert first.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("article figure").first.is_visible()
    reached = set()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.locator("h1").click()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
    assert {"words", "kind", "verdict", "budget", "Reset", "Open all", "Close all"} <= reached


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_sticks_out(opened: Any, width: int) -> None:
    page = opened(viewport={"width": width, "height": 800})
    page.get_by_role("button", name="Open all").click()
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(
        BOXES, "article, form, .sheet, figure svg, article .badge, select, input, button, h2, h3, p"
    )
    assert len(boxes) > 10 * CARDS
    assert all(left >= 0 and right <= width + 0.5 for left, _, right, _ in boxes)
    page.goto(page.url.replace("fixup.html", "index.html"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_its_script_all_is_there(opened: Any) -> None:
    page = opened(java_script_enabled=False)
    assert len(shown(page)) == CARDS
    assert not page.locator("form").is_visible()
    page.locator("article summary").first.click()
    assert page.locator("article figure").first.is_visible()
