"""Finished training runs of an artefact: final numbers, optima, outcomes and curves, as estimates and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless_lab.sweeps import OUTCOMES, SHARE, Laboratory, Sweep, SweepResult, is_minimized, optima
from normless_papers.claims import UNKNOWN, Claim, Estimate, larger, not_asked, premise, replicates
from normless_papers.claims.declared import ClaimRow
from normless_papers.claims.training import best_accuracy, chance_of, runs_do_not_train, runs_train, trains
from normless_papers.evidence import QUANTITY, Evidence
from normless_papers.experiments.effort import TrainingSweeps
from normless_papers.experiments.run_claims import claimed_of
from normless_papers.published import published_as

_PERCENT = ("test_accuracy", "test_accuracy_top5", "chance_accuracy")
_NUMERIC_AXES = ("depth", "batch_size")
# The share of its plateau that a control must reach for failed checks to contradict the paper.
PRESENT = 0.95
_COUNTS = ("runs", "diverged", "chance", "failed")


@dataclass(frozen=True)
class Runs:
    """The finished runs of sweeps with the same axes.

    Attributes:
        table: a row per run, as `SweepResult.runs`, accuracies in percent, depths and batch sizes as numbers; with
            `training_accuracy` of the last epoch, `test_error` and `gap` (training minus test accuracy), in percent;
            `curve`, the mean training accuracy over all epochs, chance if the run diverged.
        epochs: a row per run and epoch, as `SweepResult.epochs`.
        training: declares them.
        data: provenance of the data set.
        missing: number of runs without a result.
        laboratory: that has the runs; None of runs that were made up.
    """

    table: pd.DataFrame
    epochs: pd.DataFrame
    training: TrainingSweeps
    data: str = ""
    missing: int = 0
    laboratory: Laboratory | None = field(default=None, repr=False, compare=False)
    _optima: dict[str, pd.DataFrame] = field(init=False, default_factory=dict, repr=False, compare=False)
    _accuracies: dict[str, Estimate] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps."""
        return self.training.sweeps

    @property
    def reduction(self) -> str:
        """How the training is smaller than the paper's, as a sentence; may be empty."""
        return self.training.reduction

    @property
    def control(self) -> Mapping[str, str]:
        """The labels of the method that decides which others train; may be empty."""
        return self.training.control

    @property
    def axes(self) -> list[str]:
        """The names of the sweeps' axes."""
        return list(self.sweeps[0].axes)

    @property
    def best(self) -> int:
        """The number of the best runs at a learning rate that count."""
        return self.sweeps[0].best

    def labels(self, axis: str) -> list[Any]:
        """Return the labels of an axis that were run, in order."""
        return list(self.table[axis].unique())

    def chosen(self, **labels: Any) -> pd.DataFrame:
        """Return the runs with these labels, or other values of columns."""
        return chosen(self.table, **labels)

    def final(self, column: str, **labels: Any) -> Estimate:
        """Return the estimate of a column over the runs with these labels; NaN if no run has a value."""
        return estimate(self.chosen(**labels), column, _name(labels))

    def finals(self, column: str, axis: str) -> dict[str, Estimate]:
        """Return `final` of every label of an axis."""
        return {str(label): self.final(column, **{axis: label}) for label in self.labels(axis)}

    def optima(self, metric: str) -> pd.DataFrame:
        """Return the optimum of each combination over the learning rates, as `normless_lab.sweeps.optima`.

        With a control, `trainable` says whether it trained in comparison; True if that is undecided.
        """
        if metric not in self._optima:
            table = optima(self.table, axes=self.axes, metric=metric, best=self.best)
            if self.control:
                table["trainable"] = [
                    self._trained({str(axis): label for axis, label in labels.items()})
                    for labels in table[self.axes].to_dict("records")
                ]
            self._optima[metric] = table
        return self._optima[metric]

    def _trained(self, labels: dict[str, Any]) -> bool:
        """Return whether a combination trained at some rate, or whether that is undecided."""
        chance = chance_of(self.table)
        control, best = self.accuracy(**(labels | dict(self.control))), self.accuracy(**dict[str, Any](self.control))
        # A control that failed at this depth or batch size decides nothing there.
        against = best if math.isnan(control.mean) or control.mean < (best.mean + chance) / 2 else control
        return trains("It trained.", self.accuracy(**labels), against, chance).verdict != "fails"

    def optimum(self, metric: str, **labels: Any) -> Estimate:
        """Return mean and deviation at the optimum; NaN if the combination was not run, or trained at no rate."""
        row = self._row(metric, **labels)
        if row is None:
            return UNKNOWN
        runs = self.chosen(**labels, rate=row["rate"])
        values = runs[runs["outcome"] != "failed"].set_index("seed")[metric].astype(float)
        return replicates(values, self.best, minimized=is_minimized(metric), name=_name(labels))

    def best_rate(self, **labels: Any) -> float:
        """Return the learning rate with the best test accuracy, whether or not anything trained."""
        return float(chosen(self.optima("test_accuracy"), **labels)["rate"].iloc[0])

    def exponent(self, metric: str, **labels: Any) -> float:
        """Return log₂ of the optimal learning rate; NaN as in `optimum`."""
        row = self._row(metric, **labels)
        return math.nan if row is None else math.log2(row["rate"])

    def exponent_range(self, metric: str, **labels: Any) -> tuple[float, float]:
        """Return log₂ of the lowest and highest rate within a deviation of the optimum; NaN as in `optimum`."""
        row = self._row(metric, **labels)
        return (math.nan, math.nan) if row is None else (math.log2(row["rate_low"]), math.log2(row["rate_high"]))

    def _row(self, metric: str, **labels: Any) -> pd.Series | None:
        rows = chosen(self.optima(metric), **labels)
        if rows.empty or math.isnan(rows["rate"].iloc[0]) or (self.control and not rows["trainable"].iloc[0]):
            return None
        return rows.iloc[0]

    def accuracy(self, **labels: Any) -> Estimate:
        """Return the test accuracy in percent at the best rate; see `best_accuracy`."""
        key = repr(sorted(labels.items()))
        if key not in self._accuracies:
            self._accuracies[key] = best_accuracy(self.chosen(**labels), self.best)
        return self._accuracies[key]

    def claimed(self, row: ClaimRow) -> list[Claim]:
        """Return the checks of a declared claim; see `normless_papers.experiments.run_claims`."""
        return claimed_of(self, row)

    def trains(self, claim: str, *, against: Mapping[str, Any], least: float = SHARE, **labels: Any) -> Claim:
        """Check that the runs with these labels train, compared with those labelled `against`; see `trains`."""
        return runs_train(claim, self.chosen(**labels), self.chosen(**against), best=self.best, least=least)

    def does_not_train(self, claim: str, *, against: Mapping[str, Any], least: float = SHARE, **labels: Any) -> Claim:
        """Check that they train at no rate; see `trains`. Undecided if they learn best at the lowest rate tried."""
        runs, control = self.chosen(**labels), self.chosen(**against)
        checked = runs_do_not_train(claim, runs, control, best=self.best, least=least)
        open_below = checked.verdict == "holds" and self._best_below(runs)
        return not_asked(checked, "it learns best at the lowest rate tried") if open_below else checked

    def _best_below(self, runs: pd.DataFrame) -> bool:
        """Whether runs at several rates are most accurate at the lowest and learn something there."""
        finished = runs[runs["outcome"] != "failed"]
        if finished["rate"].nunique() < 2:
            return False
        row = optima(finished, axes=[], metric="test_accuracy", best=self.best).iloc[0]
        lowest = finished[finished["rate"] == finished["rate"].min()]
        return bool(row["edge"] == "lowest" and (lowest["outcome"] == "trained").any())

    @property
    def premises(self) -> tuple[Claim, ...]:
        """The premise that the control reached 95 % of its plateau; none if the plateau is not known."""
        plateau = self.training.plateau
        if plateau is None:
            return ()
        named = ", ".join(f"{name.replace('_', ' ')} {label}" for name, label in plateau.control.items())
        most = f"{plateau.accuracy:g} % that it reaches when trained on ({plateau.source})"
        claim = f"The control ({named}) reaches {PRESENT:.0%} of the {most}."
        reached = self.accuracy(**dict[str, Any](plateau.control))
        return (premise(larger(claim, reached, PRESENT * plateau.accuracy)),)

    def printed(self, metric: str, name: str, deviation: str = "std") -> pd.DataFrame:
        """Return the optima in the columns of De & Smith's tables; mean and rate are NaN if nothing trained.

        `lr_log2` and `lr_log2_range` are log₂ of the optimal rate and of all rates within a deviation of it.
        """
        table = self.optima(metric)
        trained = table.where(table["trainable"].astype(bool))
        columns = table[self.axes].assign(**{name: trained["mean"], deviation: trained["deviation"]})
        columns["lr_log2"] = np.log2(trained["rate"].astype(float))
        ends = np.log2(trained[["rate_low", "rate_high"]].to_numpy(float))
        columns["lr_log2_range"] = ["" if math.isnan(low) else f"{low:g}, {high:g}" for low, high in ends]
        return columns.join(table[["edge", "n", "trainable", *_COUNTS]])

    def summary(self, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
        """Return `summary` of the table."""
        return summary(self.table, by, columns)

    @property
    def setup(self) -> dict[str, Any]:
        """The common settings, the axes, the learning rates, replicates, seeds and data."""
        first = self.sweeps[0]
        axes = {
            axis: {label: dict(own) for sweep in self.sweeps for label, own in sweep.axes[axis].items()}
            for axis in first.axes
        }
        return {
            **{name: value for name, value in first.base.items() if name != "data_root"},
            **axes,
            "learning rates": sorted({float(rate) for rate in self.table["rate"]}),
            "replicates": first.replicates,
            "best": first.best,
            "seeds": f"{first.seed} to {first.seed + first.replicates - 1}",
            "runs": len(self.table),
            "data": self.data or first.base["data"],
        }

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence on the runs that raised, with the error of the first; empty if there are none."""
        failed = self.table[self.table["outcome"] == "failed"]
        if failed.empty:
            return ()
        return (f"{len(failed)} of {len(self.table)} runs failed, the first with: {failed['error'].iloc[0]}",)

    def evidence(
        self,
        measured: pd.DataFrame,
        draw: Callable[[], Axes],
        *,
        facts: Any = None,
        setup: Mapping[str, Any] | None = None,
        on: tuple[str, ...] = QUANTITY,
        remarks: Sequence[str] = (),
    ) -> Evidence:
        """Return the runs as evidence with remarks on failures; they are its facts and set-up by default."""
        facts, setup = self if facts is None else facts, self.setup if setup is None else setup
        return Evidence(measured, facts, setup, on, draw, (*remarks, *self.failures), self.reduction, self.premises)

    def remarks(self, *metrics: str) -> tuple[str, ...]:
        """Return remarks on the optima by some metrics: single runs, single rates, optima at an end of the grid."""
        remarks = []
        if self.sweeps[0].replicates == 1:
            remarks.append("A single run at each rate: its error is not known, so that comparisons stay undecided.")
        if self.table["rate"].nunique() == 1:
            remarks.append("A single learning rate, not an optimum.")
        for metric in metrics:
            table = self.optima(metric)
            edges = table[(table["edge"] != "") & table["trainable"].astype(bool)]
            if len(edges):
                names = [", ".join(map(str, row)) for row in edges[self.axes].itertuples(index=False, name=None)]
                remarks.append(
                    f"By {metric.replace('_', ' ')} the optimum lies at an end of the learning rates tried, "
                    f"and may be better beyond it, for: {'; '.join(names)}."
                )
        return tuple(remarks)


def evidence_of(
    runs: Mapping[str, Runs],
    measured: pd.DataFrame,
    draw: Callable[[], Axes],
    *,
    facts: Any = None,
    on: tuple[str, ...] = QUANTITY,
    remarks: Sequence[str] = (),
) -> Evidence:
    """Return several runs by name as evidence, see `Runs.evidence`; the first reduction is stated."""
    setup = {name: own.setup for name, own in runs.items()}
    failures = [sentence for own in runs.values() for sentence in own.failures]
    reduction = next((own.reduction for own in runs.values() if own.reduction), "")
    premises = tuple(check for own in runs.values() for check in own.premises)
    facts = runs if facts is None else facts
    return Evidence(measured, facts, setup, on, draw, (*remarks, *failures), reduction, premises)


def carry_out(laboratory: Laboratory, training: TrainingSweeps) -> Runs:
    """Train the missing runs, and return all."""
    points = [point for sweep in training.sweeps for point in sweep.points()]
    if training.probes is not None and len({point.rate for point in points}) == 1:
        training.recorded(laboratory, [point.config for point in points])
    return runs_of(training, laboratory.run_all(training.sweeps, metrics=training.metrics), laboratory)


def read(laboratory: Laboratory, training: TrainingSweeps) -> Runs:
    """Return the finished runs; nothing is trained."""
    results = [laboratory.read(sweep, metrics=training.metrics) for sweep in training.sweeps]
    return runs_of(training, results, laboratory)


def runs_of(training: TrainingSweeps, results: Sequence[SweepResult], laboratory: Laboratory | None = None) -> Runs:
    """Return the runs of a training from the result of each of its sweeps."""
    table = pd.concat([_table(result) for result in results], ignore_index=True)
    epochs = pd.concat([result.epochs for result in results], ignore_index=True)
    rows = laboratory.state.read(list(table["hash"][:1])).values() if laboratory else ()
    data = next((str((row.result or {}).get("data", "")) for row in rows), "")
    missing = sum(result.missing for result in results)
    return Runs(table, epochs, training, data, missing, laboratory)


def _table(result: SweepResult) -> pd.DataFrame:
    """Return a row per run; see `Runs.table`."""
    table, epochs = result.runs.copy(), result.epochs
    for name in _PERCENT:
        if name in table:
            table[name] = 100 * table[name].astype(float)
    for axis in set(result.sweep.axes) & set(_NUMERIC_AXES):
        table[axis] = table[axis].astype(int)
    table["training_accuracy"] = table["curve"] = math.nan
    if "training_accuracy" in epochs:
        by_run = epochs.sort_values("epoch", kind="stable").groupby("hash")["training_accuracy"]
        table["training_accuracy"] = 100 * table["hash"].map(by_run.last()).astype(float)
        curve = 100 * table["hash"].map(by_run.mean()).astype(float)
        table["curve"] = curve.where(table["outcome"] != "diverged", table["chance_accuracy"])
    table["test_error"] = 100 - table["test_accuracy"]
    table["gap"] = table["training_accuracy"] - table["test_accuracy"]
    return table


def chosen(table: pd.DataFrame, **labels: Any) -> pd.DataFrame:
    """Return the rows with these values in the columns of these names."""
    for name, value in labels.items():
        table = table[table[name] == value]
    return table


def estimate(runs: pd.DataFrame, column: str, name: str = "") -> Estimate:
    """Return mean and deviation over the runs with a value; NaN without runs, the deviation also for one."""
    values = runs.set_index("seed")[column].astype(float).dropna()
    return replicates(values, name=name) if len(values) else UNKNOWN


def summary(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return a row per combination of the columns `by`, in the order of the table of runs.

    Each number's mean over replicates is under its own name and its sample standard deviation (NaN of a single run)
    under that and `_deviation`; `n` is the number of runs, followed by that of each outcome.
    """
    rows = []
    for labels, runs in table.groupby(list(by), sort=False):
        row = dict(zip(by, labels, strict=True))
        for column in columns:
            own = estimate(runs, column)
            row |= {column: own.mean, f"{column}_deviation": own.deviation}
        rows.append(row | {"n": len(runs)} | {name: int((runs["outcome"] == name).sum()) for name in OUTCOMES})
    return pd.DataFrame(rows)


def with_published(name: str, measured: pd.DataFrame, on: Sequence[str], column: str) -> pd.DataFrame:
    """Return a column of a summary beside an artefact's published numbers, for `beside_published`."""
    printed = {tuple(str(row[key]) for key in on): row[column] for row in published_as(name).rows}
    keys = [tuple(map(str, key)) for key in measured[list(on)].itertuples(index=False, name=None)]
    numbers = {"measured": measured[column], "deviation": measured[f"{column}_deviation"]}
    names = [", ".join(key) for key in keys]
    return pd.DataFrame({"name": names, **numbers, "published": [printed.get(key, math.nan) for key in keys]})


def _name(labels: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{axis} {value}" if isinstance(value, (int, float)) else str(value) for axis, value in labels.items()
    )
