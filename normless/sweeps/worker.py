"""One run in a worker process: carried out in its own folder and returned as a row."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from normless.process import available_cores
from normless.sweeps.executors.executor import WorkerDiedError
from normless.sweeps.runs import RunOutcome, RunRow, kind_of
from normless.train import Settings, versions_of
from normless.train.pauses import TerminatedError

LOCK = "lock"
EPOCHS = "epochs.parquet"


def carry_out_run(
    kind: str, values: Mapping[str, Any], directory: str, options: Mapping[str, Any] | None = None
) -> RunRow:
    """Carry out one run, or resume it from its folder, and return its row, of outcome `failed` if it raised.

    The folder is locked, so that a second process waits and then reads the finished result. A worker process that is
    told to end (SIGTERM) does so once the run is saved; the `options` are arguments of the kind's function.
    """
    config = kind_of(kind).settings_class().from_dict(values)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    # The system releases the lock when the process that holds it dies.
    with FileLock(folder / LOCK):
        try:
            report = kind_of(kind).function()(config, folder, **(options or {}))
        except TerminatedError as error:
            if parent_process() is not None:
                os._exit(error.exit_code)
            raise WorkerDiedError(f"its process ended: {error}") from error
        except (Exception, SystemExit) as error:
            return failed_row(config, f"{type(error).__name__}: {error}", time.perf_counter() - started)
        except KeyboardInterrupt:
            # Processes of an executor ignore Ctrl-C, so that there it comes from the run itself.
            if parent_process() is None:
                raise
            return failed_row(config, "KeyboardInterrupt, raised by the run itself", time.perf_counter() - started)
    return _row(config, report.outcome, None, report.to_dict(), time.perf_counter() - started)


def check_run(kind: str, values: Mapping[str, Any], directory: str) -> str | None:
    """What keeps a run from starting, as far as its data, network and scheme tell; None if nothing does."""
    from normless.train.training_run import check_start

    config = kind_of(kind).settings_class().from_dict(values)
    try:
        check_start(config, directory)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def failed_row(config: Settings, error: str, seconds: float) -> RunRow:
    """The row of a run that raised or whose process died."""
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
    """Host name, processor architecture and number of cores."""
    return f"{platform.node()}, {platform.machine()}, {available_cores()} cores"


@cache
def versions() -> Mapping[str, str]:
    """The versions of normless, Python and the packages that results depend on."""
    return versions_of("numpy")


def is_locked(folder: Path, lock: str = LOCK) -> bool:
    """Whether a process works in the folder of a run."""
    if not (folder / lock).exists():
        return False
    try:
        with FileLock(folder / lock, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def newest_curves(folder: Path) -> Path:
    """The file with the rows of finished epochs; of a run whose epochs are doubled, that of its last training."""

    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            # The run ended meanwhile, and its folder was removed.
            return 0.0

    return max((folder / EPOCHS, *folder.glob(f"epochs-*/{EPOCHS}")), key=age)


def finished_epochs(folder: Path) -> int:
    """The number of epochs in the curves of a run's folder."""
    import pyarrow.parquet

    try:
        return int(pyarrow.parquet.read_metadata(newest_curves(folder)).num_rows)
    except (OSError, ValueError):
        return 0
