"""The demo: which networks train, from shallow to very deep, with and without normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from normless.data import load_data
from normless.demo.report import write_demo_report
from normless.demo.run import RunRecord
from normless.demo.search import DemoSearch
from normless.demo.settings import DemoSettings
from normless.demo.signal_table import measure_signal
from normless.sweeps import DemoProgress, LocalExecutor, control_accuracy, trained_against
from normless.train import chance_accuracy

CONTROL = "batch_norm"


@dataclass(frozen=True)
class DemoResult:
    """The tables of a demo and the files written from them.

    ``runs`` has a row per depth and scheme, at its best rate: depth, scheme, rate (NaN where every rate diverged),
    outcome, test_accuracy (0..1), seconds_per_epoch, seed, epochs. ``tried`` has a row per depth, scheme and rate:
    training_loss of the first epoch (nats; infinite where it diverged). ``signal`` has a row per scheme and block of
    the deepest networks.
    """

    settings: DemoSettings
    runs: pd.DataFrame
    tried: pd.DataFrame
    signal: pd.DataFrame
    figures: tuple[Path, ...]
    report: Path

    def to_dict(self) -> dict[str, Any]:
        """What ``normless demo --json`` prints; numbers that are not finite become None."""
        files = {"figures": [str(path) for path in self.figures], "report": str(self.report)}
        return {"runs": _plain(self.runs), "tried": _plain(self.tried), **files}


def run_demo(settings: DemoSettings) -> DemoResult:
    """Train every depth with every scheme, showing progress on standard error; write figures and the page.

    Raises:
        DemoError: a run failed; nothing is then reported.
    """
    with (
        TemporaryDirectory(prefix="normless-demo-") as folder,
        DemoProgress() as progress,
        LocalExecutor(settings.workers) as executor,
    ):
        tried, finished = DemoSearch(settings, executor, Path(folder), progress).carry_out()
        measured = [executor.submit(measure_signal, settings, scheme) for scheme in settings.schemes]
        signal = pd.concat([future.result() for future in measured], ignore_index=True)
    chance = chance_accuracy(load_data(settings.data).test_labels)
    runs, rates = runs_table(finished, chance), rates_table(tried)
    figures, report = write_demo_report(settings, runs, rates, signal, chance)
    return DemoResult(settings, runs, rates, signal, figures, report)


def runs_table(finished: Sequence[RunRecord], chance: float) -> pd.DataFrame:
    """A row per run that went on to the end: ``runs`` of `DemoResult`.

    The outcome is ``diverged``, or else ``trained`` or ``untrained`` against batch norm of the same depth (see
    `normless.sweeps.trained`); where batch norm is not among the schemes, against the best that any of them reached.

    Args:
        finished: a record per depth and scheme.
        chance: accuracy of the best constant guess.
    """
    controls = {one.run.depth: one.test_accuracy for one in finished if one.run.scheme == CONTROL}
    if not controls:
        highest = max(one.test_accuracy for one in finished)
        controls = {one.run.depth: highest for one in finished}
    return pd.DataFrame(
        {
            "depth": one.run.depth,
            "scheme": one.run.scheme,
            "rate": math.nan if one.diverged else one.run.rate,
            "outcome": _outcome(one, controls, chance),
            "test_accuracy": one.test_accuracy,
            "seconds_per_epoch": one.seconds_per_epoch,
            "seed": one.run.settings.seed,
            "epochs": one.run.settings.epochs,
        }
        for one in finished
    )


def rates_table(tried: Sequence[RunRecord]) -> pd.DataFrame:
    """A row per run after its first epoch: ``tried`` of `DemoResult`."""
    return pd.DataFrame(
        {
            "depth": one.run.depth,
            "scheme": one.run.scheme,
            "rate": one.run.rate,
            "training_loss": one.training_loss,
        }
        for one in tried
    )


def _outcome(one: RunRecord, controls: dict[int, float], chance: float) -> str:
    if one.diverged:
        return "diverged"
    control = control_accuracy(controls, one.run.depth, chance)
    return "trained" if trained_against(one.test_accuracy, control, chance) else "untrained"


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            str(name): None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for row in table.to_dict("records")
    ]
