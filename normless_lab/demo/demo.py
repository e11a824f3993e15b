"""The demo: which networks train, from shallow to very deep, with and without normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from normless.errors import NormlessError
from normless.spec import jsonable
from normless_lab.demo.report import write_demo_report
from normless_lab.demo.settings import DemoSettings
from normless_lab.demo.signal import measure_signal
from normless_lab.sweeps import (
    Laboratory,
    RunRow,
    Sweep,
    SweepProgress,
    SweepResult,
    control_accuracy,
    trained_against,
)


class DemoError(NormlessError):
    """A run of the demo failed; the message names it and its error."""


@dataclass(frozen=True)
class DemoResult:
    """The tables of a demo and the files written from them.

    ``runs`` and ``tried`` are those of `runs_table` and `rates_table`; ``signal`` has a row per scheme and block of
    the deepest networks.
    """

    settings: DemoSettings
    runs: pd.DataFrame
    tried: pd.DataFrame
    signal: pd.DataFrame
    figures: tuple[Path, ...]
    report: Path

    def to_dict(self) -> dict[str, Any]:
        """The output of ``normless demo --json``; numbers that are not finite become None."""
        tables = {"runs": self.runs, "tried": self.tried}
        rows = {name: table.replace(math.inf, math.nan).to_dict("records") for name, table in tables.items()}
        return {**jsonable(rows), "figures": [str(path) for path in self.figures], "report": str(self.report)}


def run_demo(settings: DemoSettings) -> DemoResult:
    """Train every depth with every scheme, showing progress on standard error; write figures and the page.

    Finished runs in the folder of the settings are not repeated. Raises a DemoError if a run fails.
    """
    with Laboratory(settings.out / "runs", workers=settings.workers) as lab:
        first, whole = train_networks(lab, settings)
        measured = [lab.submit(measure_signal, settings, scheme) for scheme in settings.schemes]
        signal = pd.concat([future.result() for future in measured], ignore_index=True)
    runs, tried = runs_table(settings, whole), rates_table(settings, first)
    figures, report = write_demo_report(settings, runs, tried, signal, float(whole.runs["chance_accuracy"].max()))
    return DemoResult(settings, runs, tried, signal, figures, report)


def train_networks(lab: Laboratory, settings: DemoSettings) -> tuple[SweepResult, SweepResult]:
    """Train every network for an epoch at every rate, and resume it at the rate with the lowest training loss.

    The schedule is that of the whole budget from the start, so the resumed run is the uninterrupted one. A network
    that diverges at every rate counts at the lowest. Returns the runs after one epoch, and the resumed ones.
    """
    first = settings.first_epochs()
    tried = _carried_out(lab, first)
    best = tried.optima("training_loss").fillna({"rate": min(settings.rates)})
    whole = settings.whole_runs(dict(zip(best["network"], best["rate"], strict=True)))
    configs: list[Any] = [point.config for point in first.points()]
    begun = {config.whole().hash: lab.weights_folder(config) for config in configs}
    for point in whole.points():
        lab.start_from(point.config, begun[point.config.hash])
    result = _carried_out(lab, whole)
    lab.forget_weights(configs)
    return tried, result


def _carried_out(lab: Laboratory, sweep: Sweep) -> SweepResult:
    """Execute a sweep, showing every run on standard error."""
    names = {point.config.hash: f"{point.labels['network']}, rate {point.rate:g}" for point in sweep.points()}

    def describe(row: RunRow) -> str:
        ended = row.outcome in ("diverged", "failed")
        loss = row.outcome if ended else f"training loss {row.columns()['training_loss']:.3f}"
        return f"{names[row.hash]}: {loss}"

    with SweepProgress(sweep.name, describe=describe) as lab.listener:
        result = lab.run(sweep)
    failed = result.runs[result.runs["outcome"] == "failed"]
    if len(failed):
        # Without their rows, the next demo repeats them.
        lab.state.remove(list(failed["hash"]))
        raise DemoError(f"The run {names[failed['hash'].iloc[0]]} failed: {failed['error'].iloc[0]}")
    return result


def runs_table(settings: DemoSettings, whole: SweepResult) -> pd.DataFrame:
    """Return a row per depth and scheme at its best rate, NaN if every rate diverged; accuracies in 0..1.

    The outcome is ``diverged``, or else ``trained`` or ``untrained`` against batch norm of the same depth (see
    `normless_lab.sweeps.trained_against`); without batch norm among the schemes, against the best of them.
    """
    table = _with_networks(settings, whole)
    chance = float(table["chance_accuracy"].max())
    control = table[table["scheme"] == "batch_norm"]
    controls = dict(zip(control["depth"], control["test_accuracy"], strict=True))
    controls = controls or dict.fromkeys(table["depth"], table["test_accuracy"].max())
    trained = [
        trained_against(accuracy, control_accuracy(controls, depth, chance), chance)
        for depth, accuracy in zip(table["depth"], table["test_accuracy"], strict=True)
    ]
    diverged = table["outcome"] == "diverged"
    table["outcome"] = pd.Series(trained).map({True: "trained", False: "untrained"}).mask(diverged, "diverged")
    table["rate"] = table["rate"].mask(diverged, math.nan)
    return table[["depth", "scheme", "rate", "outcome", "test_accuracy", "seconds_per_epoch", "seed", "epochs"]]


def rates_table(settings: DemoSettings, first: SweepResult) -> pd.DataFrame:
    """Return a row per depth, scheme and rate: training_loss of the first epoch (nats; infinite if it diverged)."""
    table = _with_networks(settings, first)
    table["training_loss"] = table["training_loss"].mask(table["outcome"] == "diverged", math.inf)
    return table[["depth", "scheme", "rate", "training_loss"]]


def _with_networks(settings: DemoSettings, result: SweepResult) -> pd.DataFrame:
    """Return the table of runs with the columns `depth` and `scheme`, the shallowest first."""
    networks = [settings.networks[label] for label in result.runs["network"]]
    depths, schemes = zip(*networks, strict=True)
    return result.runs.assign(depth=depths, scheme=schemes).sort_values("depth", kind="stable", ignore_index=True)
