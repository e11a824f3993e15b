"""A laboratory that executes nothing: it notes the runs that are still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normless.errors import NormlessError
from normless_lab.sweeps.dispatch import Attempt
from normless_lab.sweeps.laboratory import Laboratory
from normless_lab.train import Settings


class MissingRunsError(NormlessError):
    """Some requested runs have no row, and the laboratory executes none."""


class PlannedLaboratory(Laboratory):
    """A laboratory that reads finished runs, and raises a MissingRunsError at the first request with missing ones.

    Attributes:
        missing: the missing runs by hash.
    """

    missing: Mapping[str, Attempt] = {}

    def _check(self, runs: Mapping[str, Settings]) -> None:
        """Start no process."""

    def execute(self, attempts: Sequence[Attempt], *, finished: int = 0) -> None:
        """Note the runs; MissingRunsError if there are any."""
        if attempts:
            self.missing = {**self.missing, **{attempt.hash: attempt for attempt in attempts}}
            raise MissingRunsError(f"{len(attempts)} of {len(attempts) + finished} runs are missing.")
