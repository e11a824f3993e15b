"""A laboratory that notes the runs it is asked for and answers with scripted outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from normless.sweeps import Laboratory, RunOutcome, RunRow
from normless.train.settings import Settings
from normless_papers.artefact import Context

Outcome = Callable[[Settings], tuple[RunOutcome, float]]


class RecordedLab:
    """Answers with the outcome and test accuracy that a function gives each configuration."""

    def __init__(self, outcome: Outcome) -> None:
        self.configs: list[Settings] = []
        self.outcome = outcome

    def carry_out(self, configs: Sequence[Settings]) -> list[RunRow]:
        self.configs += configs
        return [self._row(config) for config in configs]

    def _row(self, config: Settings) -> RunRow:
        outcome, accuracy = self.outcome(config)
        result: dict[str, Any] | None = {
            "test_accuracy": accuracy, "chance_accuracy": 0.1, "test_loss": 2.0, "steps": 10, "diverged_step": None,
        }  # fmt: skip
        if outcome == "failed":
            result = None
        error = "ValueError: no" if outcome == "failed" else None
        about = {"seconds": 1.0, "finished_at": "", "machine": "", "versions": {}}
        return RunRow(config.hash, "train", config.to_dict(), outcome, error, result, **about)


def recorded(context: Context, outcome: Outcome) -> tuple[Context, RecordedLab]:
    """The same context with a recorded laboratory."""
    lab = RecordedLab(outcome)
    return replace(context, lab=cast(Laboratory, lab)), lab
