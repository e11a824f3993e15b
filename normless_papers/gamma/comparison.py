"""Sweeps with an axis `l2`, what decays: every choice against L2 on the weights alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from normless.sweeps import SweepResult, is_minimized
from normless_papers.claims import Check, Estimate, larger, replicates
from normless_papers.runs import chosen
from normless_papers.trained import best_accuracy, chance_of, trains

L2 = "l2"
BASELINE = "W"
COUNTS = ("runs", "diverged", "chance", "failed")
# Translations of fewer points of BLEU have hardly a phrase right.
LEAST_BLEU = 10.0


@dataclass(frozen=True)
class Comparison:
    """The optimum of every choice of what decays.

    Attributes:
        table: a row per combination: the axes' columns, `mean` and `deviation` over replicates at the optimal rate,
            `n`, `rate`, `edge`, how many of the runs diverged, stayed at chance or failed; `difference`, the mean
            less that of the baseline with the same other labels (0 for that itself), and its standard `error`, of
            differences by seed where both have the same seeds.
        runs: a row per run; the metric in the table's unit, accuracies in percent.
        metric: a column of the runs.
    """

    table: pd.DataFrame
    runs: pd.DataFrame
    metric: str

    def estimate(self, **labels: str) -> Estimate:
        """One combination at its optimal rate, by seed; NaN where it was not run or has no optimum."""
        rows, runs = chosen(self.table, **labels), chosen(self.runs, **labels)
        if rows.empty or math.isnan(float(rows["rate"].iloc[0])):
            return Estimate(math.nan, math.nan)
        at_optimum = runs[(runs["rate"] == rows["rate"].iloc[0]) & (runs["outcome"] != "failed")]
        return replicates(at_optimum.set_index("seed")[self.metric].astype(float))

    def better(self, claim: str, l2: str, *, wanted: bool = True, by: float = 0.0, **labels: str) -> Check:
        """Holds if this choice does better than the baseline beside it; of `wanted` False, if it does worse.

        Where neither of them trained enough to tell, nothing is decided.

        Args:
            claim: a sentence.
            l2: the choice.
            wanted: whether it should be better.
            by: how much better, or worse.
            labels: of the other axes.
        """
        one, other = self.estimate(l2=l2, **labels), self.estimate(l2=BASELINE, **labels)
        pair = (one, other) if wanted != is_minimized(self.metric) else (other, one)
        found = larger(claim, *pair, by=by)
        enough = self.trained(l2, **labels) or self.trained(BASELINE, **labels)
        return found if enough else replace(found, verdict="inconclusive")

    def trained(self, l2: str, **labels: str) -> bool:
        """Whether a choice trained at its best rate, beyond doubt.

        Accuracies by `normless_papers.trained.trains` against the baseline beside it; translations by their BLEU.
        """
        runs, control = (chosen(self.runs, l2=one, **labels) for one in (l2, BASELINE))
        if "bleu" in runs and runs["bleu"].notna().any():
            return float(runs.groupby("rate")["bleu"].mean().max()) >= LEAST_BLEU
        accuracies = best_accuracy(runs), best_accuracy(control)
        return trains("It trained.", *accuracies, chance_of(self.runs)).verdict == "holds"

    def differences(self, *columns: str) -> pd.DataFrame:
        """The rows that are compared, without the baselines, with further columns kept."""
        rows = self.table[self.table[L2] != BASELINE]
        return rows[[*columns, "difference", "error"]].reset_index(drop=True)


def compared(result: SweepResult, metric: str) -> Comparison:
    """Compare the choices of an axis `l2` by a metric of a sweep's runs; accuracies become percent."""
    table, runs = result.optima(metric), result.runs.copy()
    for name in ("test_accuracy", "chance_accuracy"):
        if name in runs:
            runs[name] = 100 * runs[name].astype(float)
    found = Comparison(table, runs, metric)
    axes = list(result.sweep.axes)
    rows = [_row(found, axes, row) for row in table.to_dict("records")]
    kept = [*axes, "mean", "deviation", "n", "rate", "edge", *COUNTS, "difference", "error"]
    return replace(found, table=pd.DataFrame(rows)[kept])


def _row(found: Comparison, axes: list[str], row: dict[Any, Any]) -> dict[Any, Any]:
    """An optimum in the unit of the runs, beside the baseline with the same other labels."""
    labels = {axis: row[axis] for axis in axes}
    one = found.estimate(**labels)
    optimum = row | {"mean": one.mean, "deviation": one.deviation}
    if row[L2] == BASELINE:
        return optimum | {"difference": 0.0, "error": 0.0}
    base = found.estimate(**(labels | {L2: BASELINE}))
    error = larger("It is larger.", one, base).numbers["standard_error"]
    return optimum | {"difference": one.mean - base.mean, "error": error}
