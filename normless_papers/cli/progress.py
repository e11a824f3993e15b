"""Where a row of artefacts stands, on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.status import Status

from normless.plots import VERDICT_INKS
from normless.sweeps import LaboratoryListener, RunRow
from normless_papers.reproduction import Reproduction

# Plain lines about runs come no more often.
SECONDS_BETWEEN_LINES = 10.0


class ReproductionProgress(AbstractContextManager["ReproductionProgress"]):
    """Tells of artefacts as they begin and end, and of their training runs in between.

    Attributes:
        runs: what a laboratory tells of its runs.
    """

    def __init__(self, artefacts: int, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.runs = _Runs(self)
        self._artefacts = artefacts
        self._place = 0
        self._name = ""
        self._said = time.monotonic()
        self._status = Status("", console=self.console) if self.console.is_terminal else None

    def __enter__(self) -> ReproductionProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, name: str) -> None:
        """An artefact begins."""
        self._place += 1
        self._name = f"[{self._place}/{self._artefacts}] {name}"
        self._said = time.monotonic()
        if self._status is not None:
            self._status.update(self._name.replace("[", r"\["))

    def end(self, one: Reproduction) -> None:
        """An artefact has ended."""
        mark = VERDICT_INKS[one.verdict].marker
        detail = f": {one.error}" if one.error else ""
        self._print(f"{self._name} {mark} {one.verdict}, {one.seconds:.1f} s{detail}")

    def tell_runs(self, finished: int, wanted: int) -> None:
        """Some runs of the artefact are finished."""
        text = f"{self._name}: {finished} of {wanted} training runs"
        if self._status is not None:
            self._status.update(text.replace("[", r"\["))
        elif time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self._print(text)

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Runs(LaboratoryListener):
    def __init__(self, progress: ReproductionProgress) -> None:
        self._progress = progress
        self._wanted = self._finished = 0

    def on_begin(self, wanted: int, finished: int) -> None:
        self._wanted, self._finished = wanted, 0

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        self._finished += len(rows)
        self._progress.tell_runs(self._finished, self._wanted)
