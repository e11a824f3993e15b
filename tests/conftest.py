"""Every test starts from the same random state, on as many threads as its worker may use."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
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


def pytest_configure(config: pytest.Config) -> None:
    """Divide the cores among the workers: more threads than cores, be they torch's or NumPy's, make each far slower.

    The workers and the processes that tests start inherit the variable, which libraries read when they are loaded.
    """
    if workers := len(config.getoption("tx", None) or ()):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    # Digests of the tests' own code do not go to the person's home.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="normless-tests-")


def pytest_sessionfinish() -> None:
    """Let the interpreter end as it does without `_only_new_objects_are_collected`."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects_are_collected() -> None:
    """Leave what is alive before a file out of garbage collections: imported libraries have a million objects."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process."""
    file = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(file), 1), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()
