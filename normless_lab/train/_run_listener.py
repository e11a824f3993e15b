"""Callbacks of a run, and what they show: a progress bar, files about the unfinished epoch, loggers."""

from __future__ import annotations

import json
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from normless.cli import status_line
from normless.errors import NormlessError
from normless.saving import replaced
from normless_lab.train._directory import RunDirectory
from normless_lab.train._loggers import Logger
from normless_lab.train._settings import Settings

if TYPE_CHECKING:
    from normless.doctor import Watch


@dataclass(frozen=True)
class RunStart:
    """The state at the start of training: rows of `finished` epochs and losses (nats) from before an interruption."""

    config: Settings
    steps_per_epoch: int
    finished: tuple[Any, ...]
    losses: tuple[float, ...] = ()


class RunListener:
    """Callbacks of a run, called only in its first process; override those of interest.

    Rows and results are of the classes of the kind of run, as `EpochRow` and `RunResult`.

    An exception in a listener ends the run, which can then be resumed from its last finished epoch.
    """

    def on_start(self, start: RunStart) -> None:
        """Training starts or resumes; with doubled epochs, once for each training."""

    def on_step(self, step: int, loss: float) -> None:
        """The loss (nats) of a step, counted from 1, is known; on CUDA several steps come at once."""

    def on_epoch(self, row: Any) -> None:
        """An epoch is finished and saved."""

    def on_end(self, result: Any) -> None:
        """A training has ended, or its stored result was read."""

    def on_stop(self) -> None:
        """The training stops before its end: interrupted, saved for later, or by an error."""


class ProgressBar(RunListener):
    """Shows steps, epoch, the last loss and score on a console, standard error if None; a context manager.

    Until the data is read and the network is built, a line says that the run is being prepared.

    If the console is not a terminal, as in a cluster's log, it prints a line at the start and a line per epoch.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._waiting = ExitStack()
        self._task = TaskID(0)
        self._epochs = 0

    def __enter__(self) -> ProgressBar:
        self._waiting.enter_context(status_line("preparing the run", self._console))
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()
        if not self._progress.disable:  # Before rich 14 it prints an empty line.
            self._progress.stop()

    def on_start(self, start: RunStart) -> None:
        """Start a new bar, filled by the steps of finished epochs."""
        self._epochs = start.config.epochs
        done = len(start.finished)
        self._waiting.close()
        self._progress.start()
        epochs, steps = (
            f"{count} {what}{'s' * (count != 1)}"
            for count, what in ((self._epochs, "epoch"), (start.steps_per_epoch, "step"))
        )
        self._line(f"{epochs} of {steps}; {done} done")
        self._task = self._progress.add_task(
            "training",
            total=self._epochs * start.steps_per_epoch,
            completed=done * start.steps_per_epoch,
            epoch=min(done + 1, self._epochs),
            epochs=self._epochs,
            loss="–",
            score=start.finished[-1].score if start.finished else "",
        )

    def on_step(self, step: int, loss: float) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step, loss=f"{loss:.3g}")

    def on_epoch(self, row: Any) -> None:
        """Show the score, or print the line of the epoch."""
        self._progress.update(self._task, epoch=min(row.epoch + 1, self._epochs), score=row.score)
        self._line(
            f"epoch {row.epoch}/{self._epochs}  loss {row.training_loss:.3g}  {row.score}  {row.seconds:.1f} s"
        )

    def on_end(self, result: Any) -> None:
        """Stop the bar where it is: full, or at the step of divergence. A stored result does not have a bar."""
        if self._progress.tasks:
            self._progress.update(self._task, score=result.score)
            self._progress.stop_task(self._task)

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


SECONDS = 1.0


class LiveFiles(RunListener):
    """Writes `unfinished.csv`, a line `epochs,loss` per step of the unfinished epoch, and `findings.json`.

    The losses are written once a second, and removed when the epoch is among the curves. Findings stay, each with its
    `step`, the same in `epochs`. No run depends on these files, or fails for lack of them.
    """

    def __init__(self, directory: RunDirectory, watch: Watch | None) -> None:
        self._directory, self._watch = directory, watch
        self._steps_per_epoch, self._lines = 1, list[str]()
        self._findings: list[dict[str, Any]] = []
        self._written, self._told = time.monotonic(), 0

    def on_start(self, start: RunStart) -> None:
        """Remove the losses that an interrupted process left; those findings stay."""
        self._steps_per_epoch = start.steps_per_epoch
        self._clear()
        with suppress(OSError, ValueError):
            self._findings = list(json.loads(self._directory.findings.read_text(encoding="utf-8")))

    def on_step(self, step: int, loss: float) -> None:
        """Write the losses since the last call, and new findings."""
        self._lines.append(f"{step / self._steps_per_epoch:.6g},{loss:.6g}\n")
        if time.monotonic() - self._written >= SECONDS:
            with suppress(OSError), self._directory.unfinished.open("a", encoding="utf-8") as file:
                file.writelines(self._lines)
            self._lines.clear()
            self._written = time.monotonic()
        self._tell()

    def on_epoch(self, _: Any) -> None:
        """The losses are among the curves now."""
        self._clear()
        self._tell()

    def on_end(self, _: Any) -> None:
        """The same of a run that diverged."""
        self._clear()
        self._tell()

    def _clear(self) -> None:
        self._lines.clear()
        with suppress(OSError):
            self._directory.unfinished.unlink(missing_ok=True)

    def _tell(self) -> None:
        """Write all findings if some are new."""
        findings = () if self._watch is None else self._watch.findings
        if len(findings) > self._told:
            known = {(finding["kind"], *finding["where"]) for finding in self._findings}
            for finding in findings[self._told :]:
                if (finding.kind, *finding.where) not in known:
                    step = float(finding.evidence["step"])
                    self._findings.append(finding.to_dict() | {"step": step, "epochs": step / self._steps_per_epoch})
            self._told = len(findings)
            with suppress(OSError), replaced(self._directory.findings) as part:
                part.write_text(json.dumps(self._findings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class LoggerError(NormlessError, RuntimeError):
    """A logger cannot begin; the message says why."""


class RunLogger(RunListener):
    """Sends a run to a logger, about once a second and at the ends of epochs.

    `step/loss` (nats) is logged at each step, the numbers of a row as `epoch/NAME` at the last step of the epoch, and
    those of the result as `result/NAME`.

    `loggers.json` in the directory of the run says what is logged, so that a resumed run continues in the same place
    of the logger and logs each step once. Numbers that are not logged, because the logger failed or was not used
    before, follow later; a logger that fails does not end the run.
    """

    def __init__(self, directory: RunDirectory, name: str, make: Callable[..., Logger]) -> None:
        self._directory, self._name, self._make = directory, name, make
        self._logger: Any = None
        self._waiting: deque[tuple[dict[str, float], int]] = deque()
        self._logged = {"step": 0, "epoch": 0}
        self._steps_per_epoch, self._sent, self._has_warned = 1, time.monotonic(), False

    def on_start(self, start: RunStart) -> None:
        """Begin or continue, with what happened before and is not logged.

        Raises:
            LoggerError: the logger does not begin.
        """
        path, known = self._directory.path, self._stored().get(self._name, {})
        name = path.name if path.name[:7] != "epochs-" else f"{path.parent.name}/{path.name}"
        try:
            self._logger = self._make(directory=path, name=name, version=known.get("version"))
            is_new = known.get("version") != self._version
            if is_new:
                # Such as Fabric's logger to CSV.
                with suppress(NotImplementedError):
                    self._logger.log_hyperparams(start.config.to_dict())
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            raise LoggerError(f"The logger {self._name} cannot begin: {reason}; leave it out for now.") from error
        self._logged = {key: 0 if is_new else int(known[key]) for key in self._logged}
        self._steps_per_epoch = start.steps_per_epoch
        for step, loss in enumerate(start.losses, 1):
            self._wait({"step/loss": loss}, step)
            if step % start.steps_per_epoch == 0 and step // start.steps_per_epoch <= len(start.finished):
                self._wait_for_row(start.finished[step // start.steps_per_epoch - 1])
        self._send()

    def on_step(self, step: int, loss: float) -> None:
        """Send the losses since the last call."""
        self._wait({"step/loss": loss}, step)
        if time.monotonic() - self._sent >= SECONDS:
            self._send()

    def on_epoch(self, row: Any) -> None:
        """Send the numbers of the epoch."""
        self._wait_for_row(row)
        self._send()

    def on_end(self, result: Any) -> None:
        """Send the result; one that was only read is not logged."""
        if self._logger is None:
            return
        numbers = {f"result/{name}": value for name, value in _numbers(result.to_dict()).items()}
        self._waiting.append((numbers, result.steps))
        self._send()
        self._attempt(lambda: self._logger.finalize("success"))
        self._logger = None

    def on_stop(self) -> None:
        """Send what is left; a resumed run continues."""
        if self._logger is not None:
            self._send()
            self._attempt(lambda: self._logger.finalize("aborted"))
            self._logger = None

    @property
    def _version(self) -> str:
        return str(getattr(self._logger, "version", None))

    def _stored(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._directory.loggers.read_text(encoding="utf-8")))
        return {}

    def _wait(self, metrics: dict[str, float], step: int) -> None:
        if step > self._logged["step"]:
            self._logged["step"] = step
            self._waiting.append((metrics, step))

    def _wait_for_row(self, row: Any) -> None:
        if row.epoch > self._logged["epoch"]:
            self._logged["epoch"] = row.epoch
            metrics = {f"epoch/{name}": value for name, value in _numbers(asdict(row)).items()}
            self._waiting.append((metrics, row.epoch * self._steps_per_epoch))

    def _send(self) -> None:
        """Log what waits, and note that it is logged."""
        self._sent = time.monotonic()
        if self._waiting and self._attempt(self._send_waiting):
            state = self._stored() | {self._name: self._logged | {"version": self._version}}
            with suppress(OSError), replaced(self._directory.loggers) as part:
                part.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")

    def _send_waiting(self) -> None:
        while self._waiting:
            metrics, step = self._waiting[0]
            self._logger.log_metrics(metrics, step=step)
            self._waiting.popleft()
        if hasattr(self._logger, "save"):
            self._logger.save()

    def _attempt(self, log: Callable[[], None]) -> bool:
        """Return whether the logger did as asked; the first failure is a warning."""
        try:
            log()
        except Exception as error:
            if not self._has_warned:
                warnings.warn(
                    f"The logger {self._name} failed, and the run goes on: {type(error).__name__}: {error}. What it "
                    "missed is sent with the next numbers, or when the run is resumed.",
                    stacklevel=2,
                )
            self._has_warned = True
            return False
        return True


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """Return the entries that are numbers."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
