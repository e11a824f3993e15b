"""Sweeps with an axis `l2`, what decays: every choice compared with L2 on the weights alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import Ink
from normless.sweeps import is_minimized
from normless_papers.artefact import Context, Evidence
from normless_papers.claims import Check, Estimate, larger
from normless_papers.effort import Effort
from normless_papers.plots import DIFFERENCES
from normless_papers.runs import Runs, carry_out
from normless_papers.trained import best_accuracy, chance_of, trains

L2 = "l2"
BASELINE = "W"
POINTS = "test accuracy less that with L2 on the weights alone, points"
# Translations of fewer points of BLEU have hardly a phrase right.
LEAST_BLEU = 10.0
_COLUMNS = ("mean", "deviation", "n", "rate", "edge", "runs", "diverged", "chance", "failed", "difference", "error")


@dataclass(frozen=True)
class DecayComparison:
    """Runs with an axis `l2`, compared at their optima by a metric."""

    runs: Runs
    metric: str

    def estimate(self, **labels: str) -> Estimate:
        """One combination at its optimal rate, by seed; NaN where it was not run or has no optimum."""
        return replace(self.runs.optimum(self.metric, **labels), name=labels[L2])

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per combination, as `Runs.optima`; the difference of its mean to the baseline's, and its error."""
        axes, rows = self.runs.axes, []
        for row in self.runs.optima(self.metric).to_dict("records"):
            labels = {axis: row[axis] for axis in axes}
            one, base = self.estimate(**labels), self.estimate(**(labels | {L2: BASELINE}))
            gap, error = one.mean - base.mean, larger("It is larger.", one, base).numbers["standard_error"]
            difference = (0.0, 0.0) if row[L2] == BASELINE else (gap, error)
            own = {"mean": one.mean, "deviation": one.deviation}
            rows.append(row | own | dict(zip(("difference", "error"), difference, strict=True)))
        return pd.DataFrame(rows)[[*axes, *_COLUMNS]]

    def better(self, claim: str, l2: str, *, wanted: bool = True, by: float = 0.0, **labels: str) -> Check:
        """Whether a choice does so much better than the baseline with the same other labels, or worse.

        Inconclusive where neither of them trained.
        """
        one, other = self.estimate(l2=l2, **labels), self.estimate(l2=BASELINE, **labels)
        pair = (one, other) if wanted != is_minimized(self.metric) else (other, one)
        compared = larger(claim, *pair, by=by)
        enough = self.trained(l2, **labels) or self.trained(BASELINE, **labels)
        return compared if enough else replace(compared, verdict="inconclusive")

    def trained(self, l2: str, **labels: str) -> bool:
        """Whether a choice trained at its best rate: translations by their BLEU, others against the baseline."""
        runs = self.runs.chosen(l2=l2, **labels)
        if "bleu" in runs and runs["bleu"].notna().any():
            return float(runs.groupby("rate")["bleu"].mean().max()) >= LEAST_BLEU
        control = best_accuracy(self.runs.chosen(l2=BASELINE, **labels))
        return trains("It trained.", best_accuracy(runs), control, chance_of(self.runs.table)).verdict == "holds"

    def draw(
        self, inks: Mapping[str, Ink], title: str, across: str = POINTS, ax: Axes | None = None, **groups: str
    ) -> Axes:
        """The differences to the baseline, with their errors."""
        rows = self.table[self.table[L2] != BASELINE].reset_index(drop=True)
        return DIFFERENCES(rows, ax, y=L2, inks=inks, title=title, x_label=across, **groups)

    def printed(self, mean: str) -> pd.DataFrame:
        """Rows named as the paper's, with its columns `diff` and that of the mean."""
        table = self.table.rename(columns={"mean": mean, "difference": "diff", "error": "diff_error"})
        return table.assign(l2=[label if label == BASELINE else f"W, {label}" for label in table[L2]])

    def evidence(
        self,
        draw: Callable[[], Axes],
        *,
        measured: pd.DataFrame | None = None,
        on: tuple[str, ...] = (),
        remarks: Sequence[str] = (),
    ) -> Evidence:
        """The comparison as evidence."""
        table = self.table if measured is None else measured
        return self.runs.evidence(table, draw, facts=self, on=on, remarks=(*remarks, *self.remarks))

    @property
    def remarks(self) -> list[str]:
        """On what is less than the paper's training, and on single runs."""
        single = "A single run of each: its error is not known, so that comparisons stay undecided."
        reduced = f"Not the paper's setup: {self.runs.reduction} The paper's numbers are those of full networks."
        conditions = {reduced: bool(self.runs.reduction), single: self.runs.sweeps[0].replicates == 1}
        return [sentence for sentence, holds in conditions.items() if holds]


def compared(
    context: Context,
    effort: Effort,
    name: str,
    axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
    policies: Mapping[str, str],
    metric: str = "test_accuracy",
    **settings: Any,
) -> DecayComparison:
    """A sweep over some axes and what decays, by the labels of `l2`, compared by a metric."""
    l2 = {label: {"decay_policy": policy} for label, policy in policies.items()}
    sweep = effort.sweep(context, name, {**axes, L2: l2}, **settings)
    return DecayComparison(carry_out(context, sweep, metrics=(metric,), reduction=effort.reduction(context)), metric)
