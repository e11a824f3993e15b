"""A finished run as the laboratory keeps it: what was run, how it ended, when and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from normless.sweeps.run_types import kind_of
from normless.train import Report, Settings

RunOutcome = Literal["trained", "chance", "diverged", "failed"]
OUTCOMES: tuple[RunOutcome, ...] = ("trained", "chance", "diverged", "failed")


@dataclass(frozen=True)
class RunRow:
    """One finished run.

    Attributes:
        hash: of the configuration, which names the run.
        kind: of the run, as `normless.sweeps.run_types` has it.
        config: the configuration as plain data.
        outcome: how the training ended, or `failed` where it raised or its process died again and again.
        error: what a failed run raised, with the kind of the error; else None.
        result: the report as plain data, as `Report.to_dict` gives it; None of a failed run.
        seconds: wall time of carrying it out; of a run that was interrupted, of its last part.
        finished_at: date and time in UTC, by ISO 8601.
        machine: where it ran.
        versions: of the packages that numbers depend on, by name.
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
        return kind_of(self.kind).settings_class().from_dict(self.config)

    def report(self) -> Report | None:
        """How the training ended; None of a failed run."""
        return None if self.result is None else kind_of(self.kind).result_class().from_dict(self.result)
