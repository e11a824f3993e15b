"""The optima of sweeps as the papers print them, and claims about them as checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from normless.sweeps import Laboratory, Sweep, is_minimized, optima
from normless_papers.run_summary import chosen
from normless_papers.trained import best_accuracy, chance_of, does_not_train, replicates, trains
from normless_papers.verdict import Check, Estimate

_COUNTS = ("runs", "diverged", "chance", "failed")
_NUMERIC_AXES = ("depth", "batch_size")


@dataclass(frozen=True)
class Selection:
    """The optimum of every combination of axes by one metric.

    Attributes:
        table: a row per combination as `normless.sweeps.optimum.optima` gives it; depths and batch sizes are numbers,
            mean and deviation are in units of `unit`; `trainable` is whether it trained against the control, True
            where that is undecided (`normless_papers.trained`).
        metric: what was optimized.
        unit: `percent` of accuracies, `nats` of losses.
        runs: a row per run; accuracies in percent, and `extended`, whether the rate lies below those asked for.
        best: how many of the best runs at a rate count.
    """

    table: pd.DataFrame
    metric: str
    unit: str
    runs: pd.DataFrame
    best: int

    def row(self, **labels: Any) -> Mapping[str, Any] | None:
        """The combination with these labels; None where it was not run."""
        found = chosen(self.table, **labels)
        return None if found.empty else {str(name): value for name, value in found.iloc[0].items()}

    def estimate(self, **labels: Any) -> Estimate:
        """Mean and deviation at the optimum; NaN where there is none, or where no rate could be trained at."""
        row = self.row(**labels)
        if row is None or not row["trainable"] or math.isnan(row["rate"]):
            return Estimate(math.nan, math.nan)
        runs = chosen(self.runs, **labels)
        values = runs[(runs["rate"] == row["rate"]) & (runs["outcome"] != "failed")].set_index("seed")[self.metric]
        return replicates(values.astype(float), self.best, minimized=is_minimized(self.metric))

    def exponent(self, **labels: Any) -> float:
        """log₂ of the optimal learning rate; NaN as in `estimate`."""
        row = self.row(**labels)
        return math.log2(row["rate"]) if row is not None and row["trainable"] else math.nan

    def accuracy(self, *, extended: bool = True, **labels: Any) -> Estimate:
        """The test accuracy in percent at the best rate, diverged runs counting as chance.

        Args:
            extended: whether rates below those that the sweep asked for count.
            labels: of the combination.
        """
        runs = chosen(self.runs, **labels)
        return best_accuracy(runs if extended else runs[~runs["extended"].astype(bool)], self.best)

    def trains(self, claim: str, *, against: Mapping[str, Any], **labels: Any) -> Check:
        """Holds if the combination trains at some rate; see `normless_papers.trained.trains`.

        Args:
            claim: a sentence.
            against: labels of the control.
            labels: of the combination.
        """
        chance = chance_of(self.runs)
        return trains(claim, self.accuracy(**labels), self.accuracy(**against), chance)

    def does_not_train(self, claim: str, *, against: Mapping[str, Any], **labels: Any) -> Check:
        """Holds if the combination trains at none of the rates that were asked for.

        A smaller rate, added where the optimum lay at the lower end, does not make the claim false: how small a rate
        may be is what the grid says.
        """
        chance = chance_of(self.runs)
        return does_not_train(claim, self.accuracy(extended=False, **labels), self.accuracy(**against), chance)

    def published_columns(self, name: str, deviation: str = "std") -> pd.DataFrame:
        """The columns of the papers' tables.

        Args:
            name: of the mean's column.
            deviation: of its deviation's.

        Returns:
            The axes' columns; mean and deviation; `lr_log2` and `lr_log2_range`, log₂ of the optimal rate and of all
            rates within a deviation of it; `edge`, `n`, `trainable` and the counts of runs. What could not be
            trained has neither mean nor rate.
        """
        axes = list(self.table.columns[: list(self.table.columns).index("metric")])
        kept = self.table[axes].copy()
        trained = self.table["trainable"].astype(bool)
        kept[name] = self.table["mean"].where(trained)
        kept[deviation] = self.table["deviation"].where(trained)
        kept["lr_log2"] = [_log2(rate) for rate in self.table["rate"].where(trained)]
        kept["lr_log2_range"] = [
            "" if math.isnan(low) else f"{_log2(low):g}, {_log2(high):g}"
            for low, high in zip(
                self.table["rate_low"].where(trained), self.table["rate_high"].where(trained), strict=True
            )
        ]
        for column in ("edge", "n", "trainable", *_COUNTS):
            kept[column] = self.table[column]
        return kept


@dataclass(frozen=True)
class Runs:
    """The finished runs of sweeps with the same axes.

    Attributes:
        table: a row per run, as a laboratory gives it.
        sweeps: what was run.
        provenance: of the data set; empty where no run tells.
        whole: whether as much was carried out as the papers did.
        control: labels of the method that says what training reaches here.
    """

    table: pd.DataFrame
    sweeps: tuple[Sweep, ...]
    provenance: str
    whole: bool
    control: Mapping[str, str]

    def selected(self, metric: str) -> Selection:
        """The optima by a metric; accuracies in percent, losses in nats."""
        axes, best = list(self.sweeps[0].axes), self.sweeps[0].best
        runs = self.table.copy()
        for axis in set(axes) & set(_NUMERIC_AXES):
            runs[axis] = runs[axis].astype(int)
        for name in ("test_accuracy", "test_accuracy_top5", "chance_accuracy"):
            runs[name] = 100 * runs[name].astype(float)
        found = optima(runs, axes=axes, metric=metric, best=best)
        selection = Selection(found, metric, "percent" if "accuracy" in metric else "nats", runs, best)
        found["trainable"] = [
            self._trained(selection, {axis: row[axis] for axis in axes}) for row in found.to_dict("records")
        ]
        return selection

    def _trained(self, selection: Selection, labels: dict[str, Any]) -> bool:
        """Whether a combination trained at some rate, undecided or not told apart included."""
        control = selection.accuracy(**(labels | dict(self.control)))
        best = selection.accuracy(**dict[str, Any](self.control))
        chance = chance_of(selection.runs)
        # A control that itself failed at this depth or batch size is no control there.
        against = best if math.isnan(control.mean) or control.mean < (best.mean + chance) / 2 else control
        return trains("It trained.", selection.accuracy(**labels), against, chance).verdict != "fails"

    @property
    def reduction(self) -> str:
        """What is less than the papers' training; empty if nothing is."""
        base = self.sweeps[0].base
        return "" if self.whole else f"{base['epochs']} epochs of {base['data']}, smaller networks."

    @cached_property
    def accuracies(self) -> Selection:
        """The optima by test accuracy."""
        return self.selected("test_accuracy")

    @cached_property
    def losses(self) -> Selection:
        """The optima by training loss, without the L2 term."""
        return self.selected("training_loss")

    @property
    def setup(self) -> dict[str, Any]:
        """How it was measured: what the configurations have in common, the grid, the replicates."""
        first = self.sweeps[0]
        exponents = sorted({math.log2(rate) for rate in self.table["rate"]})
        return {
            **{name: value for name, value in first.base.items() if value is not None and name != "data_root"},
            **{
                axis: list(dict.fromkeys(label for one in self.sweeps for label in one.axes[axis]))
                for axis in first.axes
            },
            "log2 of learning rates": [int(one) if one.is_integer() else one for one in exponents],
            "replicates": first.replicates,
            "best": first.best,
            "seeds": [first.seed, first.seed + first.replicates - 1],
            "runs": len(self.table),
            "data": self.provenance or first.base["data"],
        }

    def _labels(self, axis: str) -> list[str]:
        return list(dict.fromkeys(label for sweep in self.sweeps for label in sweep.axes[axis]))

    def remarks(self, selection: Selection) -> tuple[str, ...]:
        """What a reader of the optima must know: which lie at an end of the grid, what failed, single runs."""
        axes = list(self.sweeps[0].axes)
        found = []
        if self.sweeps[0].replicates == 1:
            found.append("A single run at each rate: its error is not known, so that comparisons stay undecided.")
        if self.table["rate"].nunique() == 1:
            found.append("A single learning rate, not an optimum.")
        edges = selection.table[(selection.table["edge"] != "") & selection.table["trainable"].astype(bool)]
        if len(edges):
            names = [", ".join(map(str, labels)) for labels in edges[axes].itertuples(index=False, name=None)]
            found.append(
                f"By {selection.metric.replace('_', ' ')} the optimum lies at an end of the learning rates tried, "
                f"and may be better beyond it, for: {'; '.join(names)}."
            )
        failed = self.table[self.table["outcome"] == "failed"]
        if len(failed):
            found.append(f"{len(failed)} of {len(self.table)} runs failed, the first with: {failed['error'].iloc[0]}")
        return tuple(found)


def carried_out(
    lab: Laboratory,
    sweeps: Sequence[Sweep],
    metrics: Sequence[str] = ("test_accuracy",),
    *,
    whole: bool,
    control: Mapping[str, str],
) -> Runs:
    """Run what is missing of some sweeps with the same axes.

    Args:
        lab: that runs them.
        sweeps: at least one.
        metrics: whose optima must not lie on an edge of the grid, as far as it is extended.
        whole: whether the sweeps are as much as the papers did.
        control: labels of the method that others are said to train or not to train against.
    """
    tables = []
    for sweep in sweeps:
        runs = lab.run(sweep, metrics=metrics).runs
        tables.append(runs.assign(extended=runs["rate"] < sweep.rates.rates[0]))
    finished = lab.carry_out([sweeps[0].points()[0].config])
    provenance = str((finished[0].result or {}).get("data", "")) if finished else ""
    return Runs(pd.concat(tables, ignore_index=True), tuple(sweeps), provenance, whole, control)


def _log2(rate: float) -> float:
    return math.log2(rate) if rate > 0 else math.nan
