"""Tests in a fork of a process that has their libraries loaded, and none of the packages."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

LIBRARIES = (
    "torch", "torch.export", "torch._dynamo", "torch._inductor.compile_fx", "torch.fx.experimental.symbolic_shapes",
    "torch.utils.tensorboard", "numpy", "pandas", "scipy.stats", "scipy.optimize", "sklearn.datasets", "torchvision",
    "timm", "transformers", "matplotlib.pyplot", "pydantic", "sqlalchemy", "pyarrow.parquet", "jsonargparse",
    "rich.progress", "hypothesis", "lightning_fabric", "jinja2", "mpmath", "opacus", "orjson", "filelock",
)  # fmt: skip
MEMORY = 8 << 30  # bytes of a process
FIRST_FILES = 4  # files that are collected first; twice as many then, as long as no test fails
CRASH = "the process ended"
LATE = "time limit"


def load_libraries() -> None:
    """Import what the tests import; what is missing is left out."""
    for name in LIBRARIES:
        with warnings.catch_warnings(), contextlib.suppress(ImportError):
            warnings.simplefilter("ignore")
            importlib.import_module(name)


@dataclass(eq=False)  # pytest needs its hash
class Notes:
    """A plugin of pytest that runs the wanted tests only, and writes which one starts and which fails."""

    tests: set[str]
    file: Path

    def write(self, kind: str, name: str) -> None:
        with self.file.open("a") as lines:
            lines.write(json.dumps({"kind": kind, "test": name}) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.tests]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write("started", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.write("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("failed", report.nodeid)


def failing(tree: Path, tests: list[str], *, every: bool, seconds: float) -> list[str]:
    """Run tests of a tree in a forked process; return the first one that fails, or every one.

    A process that ends, or takes longer than `seconds` on a core, fails in the test that had started.
    """
    scratch = Path(f"{tree}.scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    notes = Notes(set(tests), scratch / "notes.jsonl")
    if (child := os.fork()) == 0:
        status = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            status = run(tree, tests, notes, scratch, every=every)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = wait(child, 180 + 8 * seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests left running
    rows = [json.loads(line) for line in notes.file.read_text().splitlines()] if notes.file.exists() else []
    failed = list(dict.fromkeys(row["test"] for row in rows if row["kind"] == "failed"))
    if status != 0 and not failed:
        last = rows[-1]["test"] if rows else "collection"
        is_late = status in (-signal.SIGXCPU, -signal.SIGKILL)
        failed.append(f"{last} ({LATE if is_late else CRASH})")
    return failed


def wait(child: int, seconds: float) -> int:
    """Wait for a child; return its exit code, or minus the signal that ended it."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.05)


def run(tree: Path, tests: list[str], notes: Notes, scratch: Path, *, every: bool) -> int:
    """Run tests in this process, those of a few files first; return pytest's exit code."""
    os.chdir(tree)
    sys.path[:] = [str(tree), *(folder for folder in sys.path if folder not in ("", str(Path(__file__).parent)))]
    os.environ["PYTHONPATH"] = str(tree)
    log = os.open(scratch / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    files = iter(dict.fromkeys(test.partition("::")[0] for test in tests))
    count = len(tests) if every else FIRST_FILES
    while chosen := list(islice(files, count)):
        # The libraries are loaded already.
        options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += [f"--basetemp={scratch / 'tmp'}", *([] if every else ["-x"])]
        code = pytest.main([*options, *chosen], plugins=[notes])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return int(code)
        count *= 2
    return 0
