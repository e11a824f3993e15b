"""A progress bar for one run, drawn by rich."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from normless.train.result import Report, Row
from normless.train.run_listener import RunListener, RunStart


class ProgressBar(RunListener[Row, Report]):
    """Shows steps, epoch, the last loss and the last score; a context manager.

    Args:
        console: to draw on; standard error if None, so that standard output stays free for results.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._task: TaskID | None = None
        self._epochs = 0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_start(self, start: RunStart[Row]) -> None:
        """A new bar, filled by the steps of finished epochs."""
        self._epochs = start.config.epochs
        done = len(start.finished)
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
        assert self._task is not None
        self._progress.update(self._task, completed=step, loss=f"{loss:.3g}")

    def on_epoch(self, row: Row) -> None:
        """Show the score."""
        assert self._task is not None
        following = min(row.epoch + 1, self._epochs)
        self._progress.update(self._task, epoch=following, score=row.score)

    def on_end(self, result: Report) -> None:
        """Leave the bar as it is: full, or where the run diverged."""
        if self._task is not None:
            self._progress.update(self._task, score=result.score)
            self._progress.stop_task(self._task)
