"""The runs that a sweep needs, and its tables: a row per run, a row per epoch, and the optima of a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from normless_lab.sweeps._runs import ABOUT, RunRow
from normless_lab.sweeps._sweep import Labels, Point, Sweep

# Share of the control's gain over chance.
SHARE = 0.5

Edge = Literal["", "lowest", "highest"]

LOSSES = ("training_loss", "training_loss_with_l2", "test_loss", "validation_loss")


def is_minimized(metric: str) -> bool:
    """Return whether smaller values of a metric are better: true for losses, not for accuracies and BLEU."""
    return metric in LOSSES or metric.endswith("_loss")


def optima(runs: pd.DataFrame, *, axes: Sequence[str], metric: str, best: int) -> pd.DataFrame:
    """Select the best learning rate of each combination by one metric, as De & Smith do, with the value there.

    At each rate, m_η is the mean of the best k = `best` runs that did not fail, or of all of them if there are fewer.
    The optimum is the rate with the best m_η, and the lower of equal ones. Its range contains all rates with a mean
    within one standard deviation of it. The loss of a diverged run is infinite, and NaN counts as the worst value, so
    a rate with such a run among its best k loses to a rate without.

    Args:
        runs: a row per finished run: the axes' columns, `rate`, `seed`, `outcome` and the metric.
        axes: the columns that name a combination.
        metric: a column; losses are minimized, other metrics are maximized.
        best: k.

    Returns:
        A row per combination, in the order of the runs: the axes' columns, `metric`, `mean` and `deviation` (sample
        standard deviation, NaN for one run) of the best k at the optimum, their number `n`, `rate`, `rate_low` and
        `rate_high` (its range), `edge` (`lowest` or `highest` if the optimum is an end of two or more rates, else
        empty), the numbers of all `runs` and of those `diverged`, at `chance` and `failed`, and `trainable`: whether
        k of the runs (or all, if there are fewer) trained at some rate. If all means are infinite or NaN, mean and
        rates are NaN and the edge is the lowest rate, because only lower rates could do better.

    Raises:
        ValueError: a column is missing, or `best` is below 1.
    """
    missing = [name for name in (*axes, "rate", "outcome", metric) if name not in runs.columns]
    if missing:
        raise ValueError(f"The table of runs has no column {', '.join(missing)}; it has {', '.join(runs.columns)}.")
    if best < 1:
        raise ValueError(f"Expected the best 1 or more runs of a rate, got {best}.")
    groups = runs.groupby(list(axes), sort=False) if axes else [((), runs)]
    rows = [dict(zip(axes, labels, strict=True)) | _optimum(group, metric, best) for labels, group in groups]
    return pd.DataFrame(rows, columns=[*axes, *_COLUMNS])


_COLUMNS = (
    *("metric", "mean", "deviation", "n", "rate", "rate_low", "rate_high", "edge"),
    *("runs", "diverged", "chance", "failed", "trainable"),
)


def _optimum(runs: pd.DataFrame, metric: str, best: int) -> dict[str, Any]:
    """Return the row of one combination."""
    sign = -1.0 if is_minimized(metric) else 1.0
    outcomes, tried = runs["outcome"].to_numpy(dtype=object), runs["rate"].to_numpy(dtype=float)
    row: dict[str, Any] = {"metric": metric, "runs": len(runs)}
    row |= {outcome: int(np.sum(outcomes == outcome)) for outcome in ("diverged", "chance", "failed")}
    # At least k of the runs at a rate trained, so the mean over the best is a mean over trained runs.
    at_rates = [outcomes[tried == rate] for rate in np.unique(tried)]
    row["trainable"] = any(np.sum(at_rate == "trained") >= min(len(at_rate), best) for at_rate in at_rates)
    values, counted = _comparable(runs, metric), outcomes != "failed"
    values_at = {
        float(rate): -sign * np.sort(-sign * values[counted & (tried == rate)])[:best]
        for rate in np.unique(tried[counted])
    }
    means = {rate: sign * float(np.mean(values)) for rate, values in values_at.items()}
    rates = sorted(means)
    finite = [rate for rate in rates if math.isfinite(means[rate])]
    ends: dict[float, Edge] = {rates[0]: "lowest", rates[-1]: "highest"} if len(rates) > 1 else {}
    if not finite:
        nothing = dict.fromkeys(("mean", "deviation", "rate", "rate_low", "rate_high"), math.nan)
        return row | nothing | {"n": 0, "edge": "lowest" if ends else ""}
    rate = max(finite, key=means.__getitem__)
    values = values_at[rate]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    slack = 0.0 if math.isnan(deviation) else deviation
    near = [candidate for candidate in finite if means[candidate] >= means[rate] - slack]
    row |= {"mean": float(np.mean(values)), "deviation": deviation, "n": len(values), "rate": rate}
    return row | {"rate_low": min(near), "rate_high": max(near), "edge": ends.get(rate, "")}


def _comparable(runs: pd.DataFrame, metric: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the values of a metric with NaN as the worst value; the loss of a diverged run is infinite."""
    minimized = is_minimized(metric)
    values = np.array(runs[metric].astype(float), dtype=np.float64)
    values[np.isnan(values)] = math.inf if minimized else -math.inf
    if minimized:
        values[runs["outcome"].to_numpy(dtype=object) == "diverged"] = math.inf
    return values


def trained_threshold(control: float, chance: float, share: float = SHARE) -> float:
    """Return the accuracy from which a network counts as trained: chance + share · (control − chance).

    `control` is the accuracy of a network that is known to train, usually with batch normalization. `chance` is that
    of the best constant guess, in the same unit.
    """
    return chance + share * (control - chance)


# A run of a sweep with its hash, which takes as long to compute as a row to read.
NamedPoint = tuple[str, Point]


@dataclass(frozen=True)
class SweepResult:
    """The finished runs of a sweep.

    Attributes:
        sweep: the sweep.
        runs: a row per finished run, extensions included: the axes' columns (labels), `rate`, `seed`, `outcome`
            (trained, chance, diverged or failed), `test_accuracy`, `test_accuracy_top5` and `chance_accuracy` (of the
            best constant guess), 0..1, `test_loss`, `training_loss` and `training_loss_with_l2` of the last epoch
            (nats), `seconds_per_epoch`, `steps`, `parameters`, `diverged_step`, the metrics of the kind of run,
            `epochs` (requested), `hash`, `error` (text or None). Numbers that a run does not have are NaN.
        epochs: a row per run and finished epoch: the axes' columns, `rate`, `seed`, `hash`, and the fields of the
            epochs of the kind of run, such as `EpochRow`; the rate of the epoch's last step is `epoch_rate`.
        missing: number of runs without a row.
    """

    sweep: Sweep
    runs: pd.DataFrame
    epochs: pd.DataFrame
    missing: int = 0

    def optima(self, metric: str) -> pd.DataFrame:
        """The best learning rate of each combination by a column of `runs`; see `normless_lab.sweeps.optima`."""
        return optima(self.runs, axes=tuple(self.sweep.axes), metric=metric, best=self.sweep.best)


def sweep_result(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> SweepResult:
    """Return the tables of a sweep, from its runs with their hashes, in this order, and the finished rows by hash."""
    finished = [(point, rows[name]) for name, point in points if name in rows]
    epochs = [_labels(point) | {"hash": row.hash} | epoch for point, row in finished for epoch in row.epochs()]
    columns = None if epochs else [*sweep.axes, "rate", "seed", "hash", "epoch", "seconds"]
    missing = len(points) - len(finished)
    return SweepResult(sweep, _runs_table(sweep, points, rows), pd.DataFrame(epochs, columns=columns), missing)


def _runs_table(sweep: Sweep, points: Sequence[NamedPoint], rows: Mapping[str, RunRow]) -> pd.DataFrame:
    """The table of runs alone, see `SweepResult.runs`."""
    runs = [_labels(point) | rows[name].columns() for name, point in points if name in rows]
    table = pd.DataFrame(
        runs, columns=None if runs else [*sweep.axes, "rate", "seed", "outcome", *sweep.metrics, *ABOUT]
    )
    # As objects: in pandas' own type of text None becomes NaN.
    table["error"] = pd.Series([run["error"] for run in runs], dtype=object)
    return table


def _labels(point: Point) -> dict[str, Any]:
    return {**point.labels, "rate": point.rate, "seed": point.seed}


@dataclass(frozen=True)
class NeededRuns:
    """The runs of a sweep with their hashes, and the rows of the finished ones."""

    sweep: Sweep
    points: list[NamedPoint]
    rows: dict[str, RunRow]

    @property
    def missing(self) -> dict[str, Point]:
        """The runs without a row, by hash."""
        return {name: point for name, point in self.points if name not in self.rows}

    def result(self) -> SweepResult:
        """The tables of the finished runs."""
        return sweep_result(self.sweep, self.points, self.rows)

    def complete_runs(self) -> pd.DataFrame:
        """The table of runs of the combinations with only finished runs."""
        incomplete = {tuple(point.labels.values()) for point in self.missing.values()}
        complete = [(name, point) for name, point in self.points if tuple(point.labels.values()) not in incomplete]
        return _runs_table(self.sweep, complete, self.rows)


def needed_runs(
    sweep: Sweep, metrics: Sequence[str], read: Callable[[Collection[str]], dict[str, RunRow]]
) -> NeededRuns:
    """The runs of a sweep's grid, and of the extensions that the finished runs require."""
    needed = NeededRuns(sweep, [], {})
    further: Sequence[Point] = sweep.points()
    while further:
        named = [(point.config.hash, point) for point in further]
        needed.points.extend(named)
        needed.rows.update(read([name for name, _ in named]))
        # Ends because a combination with a missing run is not extended.
        runs = needed.complete_runs()
        further = further_points(sweep, runs, metrics) if len(runs) else ()
    return needed


def further_points(sweep: Sweep, runs: pd.DataFrame, metrics: Sequence[str]) -> tuple[Point, ...]:
    """Return the runs that extend the grid if the optimum of a metric lies at its end; empty if it is complete.

    `runs` is the sweep's table of runs so far, including earlier extensions; each metric has its own optimum.
    """
    axes = list(sweep.axes)
    tried: dict[Labels, set[float]] = {}
    for *labels, rate in runs[[*axes, "rate"]].itertuples(index=False, name=None):
        tried.setdefault(tuple(labels), set()).add(float(rate))
    edges: dict[Labels, set[str]] = {labels: set() for labels in tried}
    for metric in metrics:
        table = optima(runs, axes=axes, metric=metric, best=sweep.best)
        for *labels, edge in table[[*axes, "edge"]].itertuples(index=False, name=None):
            edges[tuple(labels)].add(str(edge))
    ordered = {labels: tried[labels] for labels in sweep.combinations if labels in tried}
    rates = extended(sweep, ordered, edges)
    return tuple(point for labels, more in rates.items() for point in sweep.points_at(labels, more))


def extended(
    sweep: Sweep, tried: Mapping[Labels, Iterable[float]], edges: Mapping[Labels, Iterable[str]]
) -> dict[Labels, tuple[float, ...]]:
    """Return the learning rates to try next by combination, without combinations that need none."""
    rates = {labels: sweep.rates_of(labels).beyond(tuple(tried[labels]), tuple(edges[labels])) for labels in tried}
    return {labels: more for labels, more in rates.items() if more}
