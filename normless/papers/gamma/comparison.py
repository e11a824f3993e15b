"""Sweeps with an axis `l2`, what decays: every choice against L2 on the weights alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.lab.laboratory import SweepResult
from normless.lab.optimum import is_minimized
from normless.papers.verdict import Check, Estimate, larger

L2 = "l2"
BASELINE = "W"
COUNTS = ("runs", "diverged", "chance", "failed")


@dataclass(frozen=True)
class Comparison:
    """The optimum of every choice of what decays.

    Attributes:
        table: a row per combination: the axes' columns, `mean` and `deviation` over replicates at the optimal rate,
            `n`, `rate`, `edge`, `trainable`, how many of the runs diverged, stayed at chance or failed;
            `difference`, the mean less that of the baseline with the same other labels (0 for that itself), and its
            standard `error`.
        minimized: whether less is better.
    """

    table: pd.DataFrame
    minimized: bool

    def estimate(self, **labels: str) -> Estimate:
        """Mean and deviation of one combination; NaN where it was not run."""
        rows = self.table
        for axis, label in labels.items():
            rows = rows[rows[axis] == label]
        if rows.empty:
            return Estimate(math.nan, math.nan)
        row = rows.iloc[0]
        return Estimate(float(row["mean"]), float(row["deviation"]), max(1, int(row["n"])))

    def better(self, claim: str, l2: str, *, wanted: bool = True, **labels: str) -> Check:
        """Holds if this choice does better than the baseline beside it; of `wanted` False, if it does worse.

        Where neither of them trained, nothing is decided.
        """
        one, other = self.estimate(l2=l2, **labels), self.estimate(l2=BASELINE, **labels)
        found = larger(claim, *((one, other) if wanted != self.minimized else (other, one)))
        return found if self.trains(l2, **labels) else Check(claim, "inconclusive", found.numbers)

    def trains(self, l2: str, **labels: str) -> bool:
        """Whether this choice or the baseline beside it trained at some rate."""
        rows = self.table[self.table[L2].isin([l2, BASELINE])]
        for axis, label in labels.items():
            rows = rows[rows[axis] == label]
        return bool(rows["trainable"].any())

    def differences(self, *columns: str) -> pd.DataFrame:
        """The rows that are compared, without the baselines, with further columns kept."""
        rows = self.table[self.table[L2] != BASELINE]
        return rows[[*columns, "difference", "error"]].reset_index(drop=True)


def compared(result: SweepResult, metric: str, *, scale: float = 1.0) -> Comparison:
    """Compare the choices of an axis `l2`.

    Args:
        result: of the sweep.
        metric: a column of its runs.
        scale: what means and deviations are multiplied by, 100 for accuracies in percent.
    """
    table = result.optima(metric)
    others = [axis for axis in result.sweep.axes if axis != L2]
    for column in ("mean", "deviation"):
        table[column] = scale * table[column].astype(float)
    rows = []
    for row in table.to_dict("records"):
        base = table[table[L2] == BASELINE]
        for axis in others:
            base = base[base[axis] == row[axis]]
        rows.append(_difference(row, base.iloc[0].to_dict() if len(base) else None))
    kept = [*result.sweep.axes, "mean", "deviation", "n", "rate", "edge", "trainable", *COUNTS, "difference", "error"]
    return Comparison(pd.DataFrame(rows)[kept], is_minimized(metric))


def _difference(row: dict[Any, Any], base: dict[Any, Any] | None) -> dict[Any, Any]:
    if base is None:
        return row | {"difference": math.nan, "error": math.nan}
    if row[L2] == BASELINE:
        return row | {"difference": 0.0, "error": 0.0}
    squares = [one["deviation"] ** 2 / one["n"] if one["n"] else math.nan for one in (row, base)]
    return row | {"difference": row["mean"] - base["mean"], "error": math.sqrt(sum(squares))}
