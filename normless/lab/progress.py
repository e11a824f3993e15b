"""Where the runs of a demo stand, while they run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from normless.lab.run import DemoRun, RunState

COLOURS = {
    "waiting": "dim",
    "running": "cyan",
    "trained": "green",
    "chance": "yellow",
    "diverged": "red",
    "failed": "magenta",
}


class PlainProgress(AbstractContextManager["PlainProgress"]):
    """One line per epoch and per finished run."""

    def __init__(self, console: Console, runs: Sequence[DemoRun], epochs: int) -> None:
        self.console = console
        self.runs = runs
        self.epochs = epochs
        self.finished = 0

    def __exit__(self, *_: object) -> None:
        """Nothing to put back: lines stay."""

    def update(self, index: int, state: RunState) -> None:
        """Print the line of a run that has a new state."""
        accuracy = format_accuracy(state.test_accuracy)
        if state.state == "running":
            if state.epoch:
                self._print(f"{self.runs[index]}: epoch {state.epoch}/{self.epochs}, test accuracy {accuracy}")
            return
        self.finished += 1
        count = f"{self.finished} of {len(self.runs)} runs"
        self._print(f"{self.runs[index]}: {state.state}, test accuracy {accuracy} ({count})")

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveProgress(AbstractContextManager["LiveProgress"]):
    """One row per run, drawn again as it changes; the rows are gone when the block is left."""

    def __init__(self, console: Console, runs: Sequence[DemoRun], epochs: int) -> None:
        self.runs = runs
        self.epochs = epochs
        self.states = [RunState("waiting") for _ in runs]
        self.live = Live(console=console, get_renderable=self.table, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveProgress:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self.live.stop()

    def update(self, index: int, state: RunState) -> None:
        """Take down the new state of a run; it is drawn with the next refresh."""
        self.states[index] = state

    def table(self) -> Table:
        """The rows in the order of depth and scheme, whatever the order in which they run."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("depth", justify="right")
        table.add_column("scheme")
        table.add_column("state", min_width=8)
        table.add_column("epochs", width=16)
        table.add_column("test accuracy", justify="right")
        for run, state in sorted(zip(self.runs, self.states, strict=True), key=lambda pair: pair[0].depth):
            bar: RenderableType = ProgressBar(total=self.epochs, completed=state.epoch, width=16)
            colour = COLOURS[state.state]
            accuracy = format_accuracy(state.test_accuracy)
            table.add_row(
                str(run.depth),
                run.scheme,
                Text(state.state, colour),
                bar if state.state != "waiting" else "",
                accuracy,
            )
        return table


def progress(runs: Sequence[DemoRun], epochs: int, console: Console | None = None) -> PlainProgress | LiveProgress:
    """The display fit for standard error: live on a terminal, lines in a file or a pipe."""
    console = Console(stderr=True) if console is None else console
    return (LiveProgress if console.is_terminal else PlainProgress)(console, runs, epochs)


def format_accuracy(accuracy: float | None) -> str:
    """``67.2 %``; a dash where there is none (a diverged run, or none yet)."""
    if accuracy is None or accuracy != accuracy:
        return "–"
    return f"{100 * accuracy:.1f} %"
