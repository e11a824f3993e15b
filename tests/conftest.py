"""Every test starts from the same random state, on as many threads as its worker may use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# The same examples in every run, however long they take; `--hypothesis-profile=default` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# Several workers share the cores; more threads than cores make each of them slower.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium: that of the system, or else the one that playwright has installed."""
    system = next(filter(None, map(shutil.which, BROWSERS)), None)
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")
    # Chromium refuses to build its sandbox for root.
    arguments = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with sync_api.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=system, args=arguments)
        except sync_api.Error as error:
            if "chromium" in os.environ.get("NORMLESS_TESTS_REQUIRE", "").split():
                raise
            pytest.skip(f"no Chromium to look at the page with: {str(error).splitlines()[0]}")
        yield started
        started.close()
