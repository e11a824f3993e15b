"""A plugin of pytest which notes the lines of the packages that each test runs, and its seconds.

It writes `coverage.*` and `tests.*.jsonl` into the folder POWER_DATA, a pair for each worker. Lines that run while a
module is imported have the empty context, since only the first test of a worker imports it.
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


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        COVERAGE.start()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        COVERAGE.stop()
        COVERAGE.save()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global SAVED
    start = time.monotonic()
    COVERAGE.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        COVERAGE.switch_context("")
        with (FOLDER / f"tests.{WORKER}.jsonl").open("a") as lines:
            lines.write(json.dumps({"test": item.nodeid, "seconds": round(time.monotonic() - start, 4)}) + "\n")
        if time.monotonic() - SAVED > SAVE_EVERY:
            COVERAGE.save()
            SAVED = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        with (FOLDER / f"failed.{WORKER}.jsonl").open("a") as lines:
            lines.write(json.dumps({"test": item.nodeid, "when": report.when}) + "\n")
    return report
