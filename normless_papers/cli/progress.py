"""The progress of some artefacts on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from normless_lab.plots import VERDICT_INKS
from normless_lab.sweeps import LaboratoryListener, RunRow
from normless_papers.cli.text import shortened
from normless_papers.results.reproduction import Reproduction

# The least time between plain lines about runs.
SECONDS_BETWEEN_LINES = 10.0


class ReproductionProgress(LaboratoryListener):
    """Reports the start and the end of artefacts, and their training runs as the listener of a laboratory."""

    def __init__(self, artefacts: int, console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self._artefacts = artefacts
        self._place = self._missing = self._finished = 0
        self._name = ""
        self._printed = time.monotonic()
        self._status = Status("", console=self.console)

    def __enter__(self) -> ReproductionProgress:
        if self.console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begin(self, name: str) -> None:
        """Report that an artefact begins."""
        self._place += 1
        self._name = f"[{self._place}/{self._artefacts}] {name}"
        self._printed = time.monotonic()
        self._status.update(escape(self._name))

    def end(self, result: Reproduction) -> None:
        """Report the verdict on an artefact."""
        mark = VERDICT_INKS[result.verdict].marker
        detail = f": {shortened(result.error)}" if result.error else ""
        self._print(f"{self._name} {mark} {result.verdict}, {result.seconds:.1f} s{detail}")

    def on_begin(self, missing: int, finished: int) -> None:
        """Count the runs of a set from its start."""
        self._missing, self._finished = missing, 0

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Report how many of the set are finished."""
        self._finished += len(rows)
        text = f"{self._name}: {self._finished} of {self._missing} training runs"
        self._status.update(escape(text))
        if not self.console.is_terminal and time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self._print(text)

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
