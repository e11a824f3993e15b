"""A plugin of pytest which notes the lines of the packages that each test runs, and its seconds on a core.

It writes `coverage.*` and `tests.*.jsonl` into the folder POWER_DATA, a pair for each worker, and leaves out the
tests that are there already. Lines that run while a module is imported belong to no test, or to the first that
imports it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

PACKAGES = ("normless", "normless_lab", "normless_papers")
SAVE_EVERY = 60.0  # seconds

FOLDER = Path(os.environ["POWER_DATA"])
WORKER = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.{os.getpid()}"
COVERAGE = coverage.Coverage(
    data_file=str(FOLDER / f"coverage.{WORKER}"),
    include=[f"{Path.cwd()}/{package}/*" for package in PACKAGES],
    config_file=False,
)
SAVED = time.monotonic()
KNOWN = {json.loads(line)["test"] for path in FOLDER.glob("tests.*.jsonl") for line in path.read_text().splitlines()}
UNSAVED: list[str] = []


def save() -> None:
    """Write the lines that were run, and then the tests that have run them."""
    global SAVED
    COVERAGE.save()
    with (FOLDER / f"tests.{WORKER}.jsonl").open("a") as lines:
        lines.writelines(UNSAVED)
    UNSAVED.clear()
    SAVED = time.monotonic()


def seconds() -> float:
    """Return the seconds on a core of this process and of its children, which a busy machine does not change."""
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        COVERAGE.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        COVERAGE.stop()
        save()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if item.nodeid not in KNOWN]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = seconds()
    COVERAGE.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        COVERAGE.switch_context("")
        UNSAVED.append(json.dumps({"test": item.nodeid, "seconds": round(seconds() - start, 2)}) + "\n")
        if time.monotonic() - SAVED > SAVE_EVERY:
            save()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        with (FOLDER / f"failed.{WORKER}.jsonl").open("a") as lines:
            lines.write(json.dumps({"test": item.nodeid, "when": report.when}) + "\n")
    return report
