"""How the runs of a sweep ended, as estimates over replicates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from normless_papers.published import published_as
from normless_papers.trained import replicates
from normless_papers.verdict import Estimate

if TYPE_CHECKING:
    from normless.sweeps import Laboratory, SweepResult

OUTCOMES = ("trained", "chance", "diverged", "failed")


def final_table(result: SweepResult) -> pd.DataFrame:
    """A row per run, its accuracies in percent.

    Returns:
        The columns of the table of runs, `test_accuracy` and `chance_accuracy` in percent; and `test_error` and
        `training_accuracy` (of the last epoch's minibatches), both in percent, and `gap`, training less test
        accuracy, in points.
    """
    table = result.runs.copy()
    table["training_accuracy"] = math.nan
    if len(result.epochs):
        last = result.epochs.sort_values("epoch", kind="stable").groupby("hash")["training_accuracy"].last()
        table["training_accuracy"] = 100 * table["hash"].map(last).astype(float)
    for name in ("test_accuracy", "chance_accuracy"):
        table[name] = 100 * table[name].astype(float)
    table["test_error"] = 100 - table["test_accuracy"]
    table["gap"] = table["training_accuracy"] - table["test_accuracy"]
    return table


def chosen(table: pd.DataFrame, **labels: Any) -> pd.DataFrame:
    """The rows with these values in the columns of these names."""
    for name, value in labels.items():
        table = table[table[name] == value]
    return table


def estimate(runs: pd.DataFrame, column: str) -> Estimate:
    """Mean and deviation over the runs that have the number; NaN where none has, the deviation NaN for one."""
    values = runs.set_index("seed")[column].astype(float).dropna()
    return replicates(values) if len(values) else Estimate(math.nan, math.nan)


def estimates_by(table: pd.DataFrame, by: str, column: str) -> dict[str, Estimate]:
    """`estimate` of every label of an axis, in the order of the table."""
    return {str(label): estimate(runs, column) for label, runs in table.groupby(by, sort=False)}


def combined(terms: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Σ w_i x_i of estimates x_i, seed by seed where all have the same seeds, else with independent errors.

    Args:
        terms: each weight w_i with its estimate.
    """
    seeds = [sorted(one.by_seed) for _, one in terms]
    if seeds[0] and all(one == seeds[0] for one in seeds):
        sums = {seed: math.fsum(weight * one.by_seed[seed] for weight, one in terms) for seed in seeds[0]}
        return replicates(pd.Series(sums, dtype=float))
    mean = math.fsum(weight * one.mean for weight, one in terms)
    deviation = math.hypot(*(weight * one.deviation for weight, one in terms))
    return Estimate(mean, deviation, min(one.n for _, one in terms))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """first - second, seed by seed where both have the same seeds."""
    return combined([(1.0, first), (-1.0, second)])


def summary(table: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """A row per combination, in the order of the table.

    Args:
        table: a row per run.
        by: the columns that name a combination.
        columns: numbers of each run.

    Returns:
        The columns of `by`; each number's mean over replicates under its own name and sample standard deviation (NaN
        of a single run) with `_deviation`; `n`, how many runs there are, and how many of them ended in each outcome.
    """
    rows = []
    for labels, runs in table.groupby(list(by), sort=False):
        row: dict[str, Any] = dict(zip(by, labels, strict=True))
        for column in columns:
            one = estimate(runs, column)
            row |= {column: one.mean, f"{column}_deviation": one.deviation}
        counts = runs["outcome"].value_counts()
        rows.append(row | {"n": len(runs)} | {name: int(counts.get(name, 0)) for name in OUTCOMES})
    return pd.DataFrame(rows)


def setup_of(lab: Laboratory, *results: SweepResult) -> dict[str, Any]:
    """How some sweeps were measured: what their configurations share, what they differ in, seeds, data."""
    setup: dict[str, Any] = {}
    for result in results:
        sweep = result.sweep
        rows = lab.carry_out([sweep.points()[0].config])
        report = (rows[0].result or {}) if rows else {}
        setup |= {name: value for name, value in sweep.base.items() if value is not None and name != "data_root"}
        setup |= {axis: {label: dict(own) for label, own in labels.items()} for axis, labels in sweep.axes.items()}
        setup |= {
            "learning rates": sorted({float(rate) for rate in result.runs["rate"]}),
            "replicates": sweep.replicates,
            "seeds": f"{sweep.seed} to {sweep.seed + sweep.replicates - 1}",
            "data": report.get("data", sweep.base.get("data")),
        }
    setup["runs"] = sum(len(result.runs) for result in results)
    return setup


def with_published(name: str, measured: pd.DataFrame, on: Sequence[str], column: str) -> pd.DataFrame:
    """The rows of a summary as `beside_published` draws them.

    Args:
        name: of the artefact with the published rows.
        measured: as `summary` gives it.
        on: the columns that find each other's rows, and name them.
        column: the number.

    Returns:
        `name`, `measured`, `deviation`, and `published`, NaN where nothing is printed.
    """
    printed = {tuple(str(row[one]) for one in on): row[column] for row in published_as(name).rows}
    keys = [tuple(map(str, key)) for key in measured[list(on)].itertuples(index=False, name=None)]
    return pd.DataFrame(
        {
            "name": [", ".join(key) for key in keys],
            "measured": measured[column],
            "deviation": measured[f"{column}_deviation"],
            "published": [printed.get(key, math.nan) for key in keys],
        }
    )


def failures(*results: SweepResult) -> tuple[str, ...]:
    """A sentence on the runs that raised, with the first one's error; nothing where there are none."""
    table = pd.concat([result.runs for result in results], ignore_index=True)
    failed = table[table["outcome"] == "failed"]
    if failed.empty:
        return ()
    return (f"{len(failed)} of {len(table)} runs failed, the first with: {failed['error'].iloc[0]}",)
