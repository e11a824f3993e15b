"""One run in a worker process, executed in its own folder and returned as a row."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from normless_lab.process import available_cores
from normless_lab.sweeps.processes import WorkerDiedError
from normless_lab.sweeps.runs import RunOutcome, RunRow, kind_of
from normless_lab.train import Settings, versions_of
from normless_lab.train.pauses import TerminatedError
from normless_lab.train.turns import current_turn, hand_over

LOCK = "lock"
# While another process works in the folder of a run.
SECONDS_BETWEEN_LOOKS = 0.05
EPOCHS = "epochs.parquet"


def carry_out_run(
    kind: str, values: Mapping[str, Any], directory: str, options: Mapping[str, Any] | None = None
) -> RunRow:
    """Execute one run, or resume it from its folder, and return its row, with outcome `failed` after an error.

    The folder is locked, so a second process waits and then reads the finished result. After SIGTERM a worker process
    ends once the run is saved; the `options` are arguments of the kind's function.

    Raises:
        torch.cuda.OutOfMemoryError: the run takes turns with others, and the GPU has too little memory for it.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    config, started = kind_of(kind).settings_class().from_dict(values), time.perf_counter()
    # The system releases the lock when the process that holds it dies.
    lock = FileLock(folder / LOCK)
    while not _is_acquired(lock):
        hand_over()
        time.sleep(SECONDS_BETWEEN_LOOKS)
    takes_turns = current_turn() is not None
    try:
        report = kind_of(kind).function()(config, folder, **(options or {}))
    except TerminatedError as error:
        if parent_process() is not None and not takes_turns:
            os._exit(error.exit_code)
        raise WorkerDiedError(f"its process ended: {error}") from error
    except (Exception, SystemExit) as error:
        if takes_turns and type(error).__name__ == "OutOfMemoryError":
            raise
        return failed_row(config, f"{type(error).__name__}: {error}", time.perf_counter() - started)
    except KeyboardInterrupt:
        # Processes of an executor ignore Ctrl-C, so that there it comes from the run itself.
        if parent_process() is None:
            raise
        return failed_row(config, "KeyboardInterrupt, raised by the run itself", time.perf_counter() - started)
    finally:
        lock.release()
    return _row(config, report.outcome, None, report.to_dict(), time.perf_counter() - started)


def lacked_memory(kind: str, values: Mapping[str, Any], error: Exception) -> RunRow:
    """Return the row of a run for which a GPU has too little memory, even without other runs."""
    config = kind_of(kind).settings_class().from_dict(values)
    return failed_row(config, f"{type(error).__name__}: {error}", 0.0)


def _is_acquired(lock: FileLock) -> bool:
    """Return whether a lock could be acquired immediately; a WorkerDiedError if its folder was removed."""
    folder = Path(lock.lock_file).parent
    try:
        # The lock would make the folder again, and says that it exists if it is removed meanwhile.
        folder.stat()
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except (FileNotFoundError, FileExistsError) as error:
        raise WorkerDiedError(f"another process ran run {folder.name[:8]} and removed its folder.") from error
    return True


def put_away(folder: Path, keep: Path | None) -> None:
    """Remove the folder of a finished run, or move it atomically to the kept folders.

    One that another process has locked is left to that process, which reads the result in it.
    """
    with suppress(Timeout, OSError), FileLock(folder / LOCK, timeout=0):
        if keep is not None and not (keep / folder.name).exists():
            keep.mkdir(parents=True, exist_ok=True)
            folder.replace(keep / folder.name)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def check_run(kind: str, values: Mapping[str, Any], directory: str) -> str | None:
    """Return the error of its data, network or scheme that keeps a run from starting; None without such an error."""
    from normless_lab.train.training_run import check_start

    config = kind_of(kind).settings_class().from_dict(values)
    try:
        check_start(config, directory)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def failed_row(config: Settings, error: str, seconds: float) -> RunRow:
    """Return the row of a run that raised an error or lost its process."""
    return _row(config, "failed", error, None, seconds)


def _row(
    config: Settings, outcome: RunOutcome, error: str | None, result: Mapping[str, Any] | None, seconds: float
) -> RunRow:
    return RunRow(
        hash=config.hash,
        kind=config.KIND,
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
    """Return host name, processor architecture and number of cores."""
    return f"{platform.node()}, {platform.machine()}, {available_cores()} cores"


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of normless, Python and the packages that affect results."""
    return versions_of("numpy")


def is_locked(folder: Path, lock: str = LOCK) -> bool:
    """Return whether a process works in the folder of a run."""
    if not (folder / lock).exists():
        return False
    try:
        with FileLock(folder / lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError as error:
        # Nothing runs on a medium that cannot be written.
        return error.errno != errno.EROFS


def newest_curves(folder: Path) -> Path:
    """Return the file with the rows of finished epochs; for doubled epochs, the file of the last training."""

    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            # The run ended meanwhile, and its folder was removed.
            return 0.0

    return max((folder / EPOCHS, *folder.glob(f"epochs-*/{EPOCHS}")), key=age)


def finished_epochs(folder: Path) -> int:
    """Return the number of epochs in the curves of a run's folder."""
    import pyarrow.parquet

    curves = newest_curves(folder)
    try:
        return int(pyarrow.parquet.read_metadata(curves).num_rows) if curves.is_file() else 0
    except (OSError, ValueError):
        return 0
