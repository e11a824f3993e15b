"""Trainings with L2 on the weights, and on one more γ, each choice at its best rate and compared with the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import ROLE_INKS, SCHEME_INKS, TEXT, Ink
from normless_lab.sweeps import Point, is_minimized
from normless_papers.artefact import Context, Evidence
from normless_papers.claims import Claim, Estimate, larger
from normless_papers.claims.declared import ClaimRow
from normless_papers.claims.training import LEAST, best_accuracy, chance_of, trains
from normless_papers.evidence import QUANTITY
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs
from normless_papers.plots import DIFFERENCES

L2, BASELINE = "l2", "W"
# Choices of L2 besides the weights as the paper writes them, and their colours.
NAMES = MappingProxyType(
    {
        BASELINE: "W",
        "gamma_last": "W, γ_last",
        "gamma_down": "W, γ_down",
        "gamma_0": "W, γ_0",
        "gamma_others": "W, γ_others",
        "gamma_all": "W, all γ",
        "guidelines": "W, γ_last, γ_others",
    }
)
INKS = MappingProxyType(
    {
        BASELINE: TEXT,
        "gamma_last": ROLE_INKS["γ last"],
        "gamma_down": ROLE_INKS["γ down"],
        "gamma_0": ROLE_INKS["γ stem"],
        "gamma_others": ROLE_INKS["γ other"],
        "gamma_all": SCHEME_INKS["sqrt2"],
        "guidelines": SCHEME_INKS["rezero"],
    }
)
Axis = Mapping[str, Mapping[str, Any]]
POINTS = "test accuracy less that with L2 on the weights alone, points"
# Below this BLEU, translations have hardly a correct phrase.
LEAST_BLEU = 10.0
_COLUMNS = ("mean", "deviation", "n", "rate", "edge", "runs", "diverged", "chance", "failed", "difference", "error")


@dataclass(frozen=True)
class DecayComparison:
    """Runs with an axis `l2`, compared by a metric, each at its optimal learning rate."""

    runs: Runs
    metric: str

    def estimate(self, **labels: str) -> Estimate:
        """Estimate a combination at its optimal rate, by seed; NaN if it was not run or has no optimum."""
        return replace(self.runs.optimum(self.metric, **labels), name=labels[L2])

    @cached_property
    def table(self) -> pd.DataFrame:
        """Tabulate combinations as in `Runs.optima`, with the difference from the baseline's mean and its error."""
        axes, rows = self.runs.axes, []
        for row in self.runs.optima(self.metric).to_dict("records"):
            labels = {axis: row[axis] for axis in axes}
            own, base = self.estimate(**labels), self.estimate(**(labels | {L2: BASELINE}))
            difference = {"difference": 0.0, "error": 0.0}
            if row[L2] != BASELINE:
                error = larger("It is larger.", own, base).numbers["standard_error"]
                difference = {"difference": own.mean - base.mean, "error": error}
            rows.append(row | {"mean": own.mean, "deviation": own.deviation} | difference)
        return pd.DataFrame(rows)[[*axes, *_COLUMNS]]

    @property
    def best_points(self) -> list[Point]:
        """The runs at the optimal rates; those of combinations without one are left out."""
        axes, sweep = self.runs.axes, self.runs.sweeps[0]
        rates = {tuple(row[axis] for axis in axes): float(row["rate"]) for row in self.table.to_dict("records")}
        found = []
        for point in sweep.points():
            rate = rates.get(tuple(point.labels[axis] for axis in axes), math.nan)
            if point.rate == sweep.rates.rates[0] and not math.isnan(rate):
                # The rate may be one by which the grid was extended.
                found.append(replace(point, rate=rate, config=replace(point.config, rate=rate)))
        return found

    def better(self, claim: str, l2: str, *, wanted: bool = True, by: float = 0.0, **labels: str) -> Claim:
        """Check that a choice is better by `by` than the baseline with the same labels, or worse if not `wanted`.

        Inconclusive if neither of them trained.
        """
        own, base = self.estimate(l2=l2, **labels), self.estimate(l2=BASELINE, **labels)
        pair = (own, base) if wanted != is_minimized(self.metric) else (base, own)
        compared = larger(claim, *pair, by=by)
        enough = self.trained(l2, **labels) or self.trained(BASELINE, **labels)
        return compared if enough else replace(compared, verdict="inconclusive")

    def claimed(self, row: ClaimRow) -> list[Claim]:
        """Return the check of a declared claim: `better` or `worse` is the choice, `among` its other labels."""
        wanted = "better" in row
        labels, by = row.get("among", {}), row.get("by", 0.0)
        return [self.better(row["claim"], row["better" if wanted else "worse"], wanted=wanted, by=by, **labels)]

    def trained(self, l2: str, **labels: str) -> bool:
        """Whether a choice trained at its best rate: a translation by its BLEU, others compared with the baseline."""
        runs = self.runs.chosen(l2=l2, **labels)
        if "bleu" in runs and runs["bleu"].notna().any():
            return float(runs.groupby("rate")["bleu"].mean().max()) >= LEAST_BLEU
        control = best_accuracy(self.runs.chosen(l2=BASELINE, **labels))
        chance = chance_of(self.runs.table)
        return trains("It trained.", best_accuracy(runs), control, chance, least=LEAST).verdict == "holds"

    def draw(
        self, inks: Mapping[str, Ink], title: str, across: str = POINTS, ax: Axes | None = None, **groups: str
    ) -> Axes:
        """Draw the differences from the baseline, with their errors."""
        rows = self.table[self.table[L2] != BASELINE].reset_index(drop=True)
        return DIFFERENCES(rows, ax, y=L2, inks=inks, title=title, x_label=across, **groups)

    def printed(self, mean: str) -> pd.DataFrame:
        """Return rows with the paper's names, its column `diff`, and `mean` as the name of the mean."""
        table = self.table.rename(columns={"mean": mean, "difference": "diff", "error": "diff_error"})
        return table.assign(l2=[label if label == BASELINE else f"W, {label}" for label in table[L2]])

    def evidence(
        self,
        draw: Callable[[], Axes],
        *,
        measured: pd.DataFrame | None = None,
        on: tuple[str, ...] = QUANTITY,
    ) -> Evidence:
        """Return the comparison as evidence."""
        table = self.table if measured is None else measured
        return self.runs.evidence(table, draw, facts=self, on=on, remarks=self.remarks)

    @property
    def remarks(self) -> list[str]:
        """Sentences on what is smaller than the paper's training, and on single runs."""
        single = "There is a single run of each, so its error is unknown and comparisons stay undecided."
        reduced = f"Not the paper's setup: {self.runs.reduction} The paper's numbers are those of full networks."
        conditions = {reduced: bool(self.runs.reduction), single: self.runs.sweeps[0].replicates == 1}
        return [sentence for sentence, holds in conditions.items() if holds]


def compared(runs: Runs) -> DecayComparison:
    """Compare the runs of `decay_training` by their metric."""
    return DecayComparison(runs, runs.training.metrics[0])


def decay_training(
    context: Context,
    effort: Effort,
    name: str,
    axes: Mapping[str, Axis],
    policies: Mapping[str, str],
    *,
    metric: str = "test_accuracy",
    **settings: Any,
) -> TrainingSweeps:
    """Declare a sweep over axes and decay policies, which `policies` names by label of `l2`."""
    l2 = {label: {"decay_policy": policy} for label, policy in policies.items()}
    return effort.training(context, effort.sweep(context, name, {**axes, L2: l2}, **settings), metrics=(metric,))
