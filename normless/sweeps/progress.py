"""Where a demo stands while it runs: a bar per stage on a terminal, a line per run elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class DemoProgress(AbstractContextManager["DemoProgress"]):
    """Shows stages of several runs each, on standard error.

    Args:
        console: to write to; standard error if None.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, stage: str, runs: int) -> None:
        """A stage of so many runs begins."""
        self._stage = self._bars.add_task(stage, total=runs, last="")
        if not self.console.is_terminal:
            self._print(f"{stage}: {runs} runs")

    def finish(self, text: str) -> None:
        """A run of the stage is finished; the text says how it went."""
        self._bars.update(self._stage, advance=1, last=text)
        if not self.console.is_terminal:
            self._print(f"  {text}")

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
