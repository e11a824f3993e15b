"""The demo: which networks train, from shallow to very deep, with and without normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from normless.lab.progress import progress
from normless.lab.run import DemoRun, RunRecord, RunState, train_run
from normless.lab.settings import DemoSettings
from normless.lab.workers import run_in_workers
from normless.machine import available_cores


@dataclass(frozen=True)
class DemoResult:
    """The tables of a demo and the files written from them.

    ``runs`` has a row per depth and scheme: depth, scheme, outcome, test_accuracy (0..1), seconds_per_epoch,
    seed, epochs, rate. ``signal`` has a row per scheme and block of the deepest networks.
    """

    settings: DemoSettings
    runs: pd.DataFrame
    signal: pd.DataFrame
    figures: tuple[Path, ...]
    report: Path

    def to_dict(self) -> dict[str, Any]:
        """What ``normless demo --json`` prints; numbers that are not finite become None."""
        rows = [
            {
                name: None if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in row.items()
            }
            for row in self.runs.to_dict("records")
        ]
        return {"runs": rows, "figures": [str(path) for path in self.figures], "report": str(self.report)}


def run_demo(settings: DemoSettings) -> DemoResult:
    """Train every depth with every scheme, showing progress on standard error; write figures and the page.

    Raises:
        RunFailedError: a run raised or its process died; nothing is then reported.
    """
    # Imported here and not above: the workers import this file's neighbours and draw no figures.
    from normless.lab.demo_report import write_demo_report

    runs = plan_runs(settings)
    with progress(runs, settings.epochs) as display:

        def on_result(index: int, record: RunRecord) -> None:
            display.update(index, RunState(record.outcome, record.epochs, record.test_accuracy))

        records = run_in_workers(
            train_run,
            runs,
            workers=settings.workers or available_cores(),
            on_event=display.update,
            on_result=on_result,
        )
    table = runs_table(settings, records)
    signal = pd.concat([record.signal for record in records if record.signal is not None], ignore_index=True)
    figures, report = write_demo_report(settings, table, signal)
    return DemoResult(settings, table, signal, figures, report)


def plan_runs(settings: DemoSettings) -> list[DemoRun]:
    """Every depth with every scheme, the longest first, lest one of them runs alone at the end."""
    deepest = max(settings.depths)
    return [
        DemoRun(settings, depth, scheme, measures_signal=depth == deepest)
        for depth in sorted(settings.depths, reverse=True)
        for scheme in settings.schemes
    ]


def runs_table(settings: DemoSettings, records: Sequence[RunRecord]) -> pd.DataFrame:
    """A row per run, by depth and then in the settings' order of schemes."""
    rows = [
        {
            "depth": record.run.depth,
            "scheme": record.run.scheme,
            "outcome": record.outcome,
            "test_accuracy": record.test_accuracy,
            "seconds_per_epoch": record.seconds_per_epoch,
            "seed": settings.seed,
            "epochs": settings.epochs,
            "rate": settings.rate,
        }
        for record in records
    ]
    return pd.DataFrame(rows).sort_values("depth", kind="stable", ignore_index=True)
