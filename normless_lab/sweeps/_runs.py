"""The kinds of runs, a finished run as a row of the laboratory's table, and one run in a worker process."""

from __future__ import annotations

import errno
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Literal, cast

from filelock import FileLock, Timeout

from normless.code_names import names_of_data
from normless.errors import NormlessError
from normless.registry import Registry
from normless_lab.process import available_cores
from normless_lab.sweeps._processes import WorkerDiedError
from normless_lab.train import Settings, versions_of
from normless_lab.train._pauses import TerminatedError
from normless_lab.train._result import Report
from normless_lab.train._turns import current_turn, hand_over

RunOutcome = Literal["trained", "chance", "diverged", "failed"]
OUTCOMES: tuple[RunOutcome, ...] = ("trained", "chance", "diverged", "failed")

# Columns of the table of runs that are of the same name in a result.
RESULT_COLUMNS = (
    *("test_accuracy", "test_accuracy_top5", "chance_accuracy", "test_loss"),
    *("seconds_per_epoch", "steps", "parameters", "diverged_step"),
)
# Columns of the last finished epoch.
EPOCH_COLUMNS = ("training_loss", "training_loss_with_l2")
# Columns that an optimum can be requested for, besides those of the kind of run.
METRICS = (*RESULT_COLUMNS, *EPOCH_COLUMNS)
ABOUT = ("epochs", "hash", "error")


_NO_METRICS: Mapping[str, str] = MappingProxyType({})


class UnknownKindError(NormlessError, ValueError):
    """The kind of run is unknown; the message lists the existing kinds."""


@dataclass(frozen=True)
class Kind:
    """A kind of run. Each attribute is the text `MODULE:NAME` of an object that is imported on first use.

    Attributes:
        settings: class of its configuration, a subclass of `Settings`.
        carry_out: function (configuration, directory) → result that starts or resumes the run in the directory.
        result: class of the result, a subclass of `Report`.
        metrics: columns that the table of runs has for this kind, each with the field of the result.
    """

    settings: str
    carry_out: str
    result: str
    metrics: Mapping[str, str] = field(default_factory=lambda: _NO_METRICS)

    @classmethod
    def of_training(cls, settings: str, result: str, metrics: Mapping[str, str] = _NO_METRICS) -> Kind:
        """Return the kind of the runs of the training loop."""
        return cls(settings, "normless_lab.train:train", result, metrics)

    def settings_class(self) -> type[Settings]:
        """The class of its configurations."""
        return cast(type[Settings], resolve_name(self.settings))

    def function(self) -> Callable[..., Report]:
        """The function that carries a run out."""
        return cast(Callable[..., Report], resolve_name(self.carry_out))

    def result_class(self) -> type[Report]:
        """The class of its results."""
        return cast(type[Report], resolve_name(self.result))


KINDS: Registry[Kind] = Registry("kind of run", "kinds", package="normless_lab", of=Kind)
"""The kinds of runs by name; other distributions add theirs by entry points."""
KINDS.register("train")(Kind.of_training("normless_lab.train:TrainConfig", "normless_lab.train:RunResult"))


def kind_of(name: str) -> Kind:
    """Return the kind of run of a name in `KINDS`, FILE.py:NAME or MODULE:NAME, or raise UnknownKindError."""
    try:
        return KINDS.find(name)
    except (ValueError, ModuleNotFoundError) as error:
        raise UnknownKindError(
            f"There is no kind of run {name!r}; there are {', '.join(KINDS)}, and one of your own is FILE.py:NAME or "
            f"MODULE:NAME of a normless_lab.sweeps.Kind. {error}"
        ) from error


@dataclass(frozen=True)
class RunRow:
    """One finished run.

    Attributes:
        hash: of the configuration; identifies the run.
        kind: name of the kind of run, see `kind_of`.
        config: the configuration as plain data.
        outcome: of the training; `failed` if the run raised or its process died repeatedly.
        error: type and message of the exception of a failed run, else None.
        result: the report as plain data, see `Report.to_dict`; None for a failed run.
        seconds: wall time; for a run that was interrupted, of its last part.
        finished_at: date and time in UTC, ISO 8601.
        machine: on which it ran.
        versions: by package, of the packages that results depend on.
    """

    hash: str
    kind: str
    config: Mapping[str, Any]
    outcome: RunOutcome
    error: str | None
    result: Mapping[str, Any] | None
    seconds: float
    finished_at: str
    machine: str
    versions: Mapping[str, str]

    def settings(self) -> Settings:
        """The configuration."""
        kind = self._kind().settings_class()
        with names_of_data(f"The row of run {self.hash[:8]}"):
            return kind.from_dict(self.config)

    def report(self) -> Report | None:
        """The result; None for a failed run."""
        return None if self.result is None else self._kind().result_class().from_dict(self.result)

    def columns(self) -> dict[str, Any]:
        """The row of the table of runs, without labels; numbers that the run does not have are NaN."""
        result = self.result or {}
        last = result["epochs"][-1] if result.get("epochs") else {}
        columns = {name: name for name in RESULT_COLUMNS}
        # Rows of others in the same database may be of a kind that nobody named here.
        with suppress(UnknownKindError):
            columns |= self._kind().metrics
        numbers = {column: number(result.get(name)) for column, name in columns.items()}
        numbers |= {name: number(last.get(name)) for name in EPOCH_COLUMNS}
        about = {"epochs": self.config.get("epochs"), "hash": self.hash, "error": self.error}
        return {"outcome": self.outcome} | numbers | about

    def _kind(self) -> Kind:
        """Return the kind of run, of which the name is data."""
        with names_of_data(f"The row of run {self.hash[:8]}"):
            return kind_of(self.kind)

    def epochs(self) -> list[dict[str, Any]]:
        """The rows of the table of epochs, without labels."""
        return [
            {
                "epoch_rate" if name == "rate" else name: value if name == "epoch" else number(value)
                for name, value in epoch.items()
            }
            for epoch in (self.result or {}).get("epochs", ())
        ]


def number(value: Any) -> float:
    """Convert a number in the JSON of a report, where `inf` and `nan` are texts and a missing number is null."""
    return math.nan if value is None else float(value)


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
    from normless_lab.train._training_run import check_start

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
