"""Which tests run the marked lines, in processes that they start too: `hit` stands in the marked sources.

As a plugin of pytest it notes the seconds that each test takes on a core, and which tests fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(os.environ["POWER_HITS"])
SEEN: set[tuple[int, str]] = set()


def write(file: str, *columns: object) -> None:
    """Append a row; lines of this length do not mix with those of other processes."""
    with (FOLDER / file).open("a") as rows:
        rows.write("\t".join(map(str, columns)) + "\n")


def hit(mark: int) -> None:
    """Note that the test which runs now runs the mark."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (mark, test) not in SEEN:
        SEEN.add((mark, test))
        write("hits", mark, test)


def seconds() -> float:
    """Return the seconds on a core of this process and of its children, which a busy machine does not change."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = seconds()
    try:
        return (yield)
    finally:
        write("seconds", round(seconds() - start, 2), item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        write("failed", report.when, item.nodeid)
    return report
