"""A laboratory that executes nothing: it notes the runs that are still missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normless.errors import NormlessError
from normless_lab.sweeps.laboratory import Laboratory
from normless_lab.train import Settings


class MissingRunsError(NormlessError):
    """Some requested runs have no row, and the laboratory executes none."""


class PlannedLaboratory(Laboratory):
    """A laboratory that reads finished runs, and raises a MissingRunsError at the first request with missing ones.

    Attributes:
        missing: the configurations of the missing runs by hash.
    """

    missing: Mapping[str, Settings] = {}

    def _check(self, runs: Mapping[str, Settings]) -> None:
        """Start no process."""

    def _carry_out(self, runs: Mapping[str, Settings], **_: Any) -> None:
        if runs:
            self.missing = {**self.missing, **runs}
            raise MissingRunsError(f"{len(runs)} runs are missing.")
