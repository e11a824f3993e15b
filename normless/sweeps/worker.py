"""What a worker process does with a run: carries it out in a folder of its own, and says how it ended."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

from normless import __version__
from normless.machine import available_cores
from normless.sweeps.in_flight import LOCK
from normless.sweeps.row import RunOutcome, RunRow
from normless.sweeps.run_types import kind_of
from normless.train import Settings

PACKAGES = ("torch", "numpy")


def carry_out_run(kind: str, values: Mapping[str, Any], directory: str) -> RunRow:
    """Carry out one run, or go on with what its folder holds of it.

    One process at a time works in a folder: another that is told to waits, and then finds the run finished there.

    Args:
        kind: of the run, as `normless.sweeps.run_types` has it.
        values: its configuration as plain data.
        directory: the run's own folder; made if missing.

    Returns:
        The run's row; one with outcome `failed` and the error's text if it raised.
    """
    config = kind_of(kind).settings_class().from_dict(values)
    place = Path(directory)
    place.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    # The system gives the lock back when the process that holds it dies.
    with FileLock(place / LOCK):
        try:
            report = kind_of(kind).function()(config, place)
        except Exception as error:
            return failed_row(config, f"{type(error).__name__}: {error}", time.perf_counter() - started)
    return _row(config, report.outcome, None, report.to_dict(), time.perf_counter() - started)


def failed_row(config: Settings, error: str, seconds: float) -> RunRow:
    """The row of a run that did not end by itself.

    Args:
        config: of the run.
        error: what happened, with the kind of the error.
        seconds: since it was started.
    """
    return _row(config, "failed", error, None, seconds)


def _row(
    config: Settings, outcome: RunOutcome, error: str | None, result: Mapping[str, Any] | None, seconds: float
) -> RunRow:
    return RunRow(
        hash=config.hash,
        kind=config.COMMAND,
        config=config.to_dict(),
        outcome=outcome,
        error=error,
        result=result,
        seconds=seconds,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        versions=versions(),
    )


@cache
def machine() -> str:
    """Name, kind of processor, and cores of the machine."""
    return f"{platform.node()}, {platform.machine()}, {available_cores()} cores"


@cache
def versions() -> Mapping[str, str]:
    """The versions of normless, Python and the packages that numbers depend on."""
    found = {"normless": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
