"""The site: its notebooks, its front page, the width of its code, and the built pages in a browser."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from notebooks_of_tutorials import NOTEBOOKS, REPOSITORY, TUTORIALS, notebook_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
PLACES = ("", "choosing/", "networks/", "diagnosis/", "demo/", "tutorials/sweep/")
TYPED = {
    "my network does not train": "/diagnosis/",
    "load_state_dict": "/networks/",
    "batch size 1": "/tutorials/batch_size_one/",
    "param_groups": "/api/",
}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return [text for found, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_notebook_of_a_tutorial_has_its_code_and_links_that_lead_to_the_repository(page: Path) -> None:
    path = NOTEBOOKS / f"{page.stem}.ipynb"
    assert path.read_text(encoding="utf-8") == notebook_of(page), "make notebooks"
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]  # type: ignore[no-untyped-call]
    assert [cell for cell in cells[1:] if cell[0] not in "%!"] == [text.strip() for text in blocks(page, "python")]
    targets = re.findall(r"\]\(([^)#]+)", notebook_of(page).replace(f"{REPOSITORY}/blob/main/", "here:"))
    assert all("://" in target or (ROOT / target.removeprefix("here:")).is_file() for target in targets)


def test_notebooks_are_those_of_the_tutorials_and_the_front_page_has_the_code_of_the_readme() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.iterdir()) == [page.stem for page in TUTORIALS]
    (shown,) = blocks(ROOT / "docs" / "index.md", "python")
    assert shown == blocks(ROOT / "README.md", "python")[0], "the README's code is run by its test"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each on the terminal."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site."""
    if find_spec("mkdocs") is None or find_spec("mike") is None:
        pytest.skip("the extra docs, which builds the site, is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def open_page(browser: Browser, address: str, width: int) -> Page:
    page = browser.new_context(viewport={"width": width, "height": 850}).new_page()
    page.goto(address)
    return page


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen(site: str, browser: Browser, width: int) -> None:
    # Code that is wider than its box would scroll; that of Python does not on a desktop.
    wide = "[...document.querySelectorAll('.language-python code')].filter(c => c.scrollWidth > c.clientWidth).length"
    broken = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
    for place in PLACES:
        page = open_page(browser, site + place, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        assert width < 1280 or page.evaluate(wide) == 0, place
        assert page.evaluate(broken) == []
        page.context.close()


@pytest.mark.slow
def test_search_finds_what_people_type(site: str, browser: Browser) -> None:
    for typed, found in TYPED.items():
        page = open_page(browser, site, 1280)
        page.locator("[data-md-component='search-query']").fill(typed)
        results = page.locator(".md-search-result__link")
        results.first.wait_for(timeout=20_000)
        assert found in results.evaluate_all("links => links.map(link => link.pathname)")[:6], typed
        page.context.close()
