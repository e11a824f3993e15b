"""How the demo finds the learning rate of each scheme at each depth, from training losses alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path

from normless.demo.run import DemoRun, RunRecord, train_run
from normless.demo.settings import DemoSettings
from normless.errors import NormlessError
from normless.sweeps import DemoProgress, Executor


class DemoError(NormlessError):
    """A run of the demo failed; the message names it and says what happened."""


@dataclass(frozen=True)
class DemoSearch:
    """Trains the networks of a demo.

    Every rate is tried for one epoch, and the run with the lowest training loss of that epoch goes on to the end of
    the budget. The schedule is that of the whole budget from the start, so the run that goes on loses nothing.

    Args:
        settings: of the demo.
        executor: entered.
        folder: for the runs.
        progress: entered; shows every run.
    """

    settings: DemoSettings
    executor: Executor
    folder: Path
    progress: DemoProgress

    def carry_out(self) -> tuple[list[RunRecord], list[RunRecord]]:
        """Train every depth with every scheme.

        Returns:
            All runs after one epoch, and those that went on after their last, both by depth and in the order of the
            schemes.

        Raises:
            DemoError: a run failed.
        """
        settings = self.settings
        runs = [
            DemoRun(settings, depth, scheme, rate)
            for depth in sorted(settings.depths)
            for scheme in settings.schemes
            for rate in settings.rates
        ]
        tried = self._train("first epoch", runs, epochs=1)
        best = [record.run for record in best_of_each(tried)]
        return tried, self._train("best rates, to the end", best, epochs=settings.epochs)

    def _train(self, stage: str, runs: Sequence[DemoRun], epochs: int) -> list[RunRecord]:
        """Train some runs up to an epoch, and show them as they come; their records are in the runs' order."""
        self.progress.begin(stage, len(runs))
        # The longest first, lest one of them runs alone at the end.
        futures = {
            self.executor.submit(train_run, run, self.folder, epochs): run
            for run in sorted(runs, key=lambda run: run.depth, reverse=True)
        }
        records = {}
        for future in as_completed(futures):
            run, error = futures[future], future.exception()
            if error is not None:
                said = str(error) if isinstance(error, NormlessError) else f"{type(error).__name__}: {error}"
                raise DemoError(f"The run {run} failed: {said}") from error
            records[run] = future.result()
            self.progress.finish(str(records[run]))
        return [records[run] for run in runs]


def best_of_each(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Of each depth and scheme the record with the lowest training loss, the lower rate of equals."""
    best: dict[tuple[int, str], RunRecord] = {}
    for record in sorted(records, key=_loss_and_rate):
        best.setdefault((record.run.depth, record.run.scheme), record)
    return [record for record in records if best[record.run.depth, record.run.scheme] is record]


def _loss_and_rate(record: RunRecord) -> tuple[float, float]:
    return record.training_loss, record.run.rate
