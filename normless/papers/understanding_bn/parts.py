"""The search for the best learning rate of networks with parts of batch norm (appendices B and H)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from normless.lab.laboratory import SweepResult
from normless.papers.artefact import Context
from normless.papers.finals import chosen, final_table
from normless.papers.trained import best_accuracy, highest_trained_rate
from normless.papers.understanding_bn.protocol import SUBSETS, Effort, parts_scheme, parts_text
from normless.papers.verdict import Check, check
from normless.report.palette import Ink
from normless.report.probes.series import series_ink
from normless.report.rate_outcomes import accuracy_against_rate

AXIS = "parts"
_NAMES = {"gamma": "γ", "beta": "β", "mu": "μ", "sigma2": "σ²"}


def in_symbols(parts: str) -> str:
    """A subset as figures write it: {γ, β, μ, σ²}."""
    return "{" + ", ".join(_NAMES[part] for part in parts.split(", ") if part) + "}"


INKS: dict[str, Ink] = {in_symbols(parts_text(parts)): series_ink(place) for place, parts in enumerate(SUBSETS)}


def searched(context: Context, effort: Effort, subsets: Sequence[tuple[str, ...]]) -> SweepResult:
    """Carry out the search for the best learning rate of networks with some subsets of batch norm's parts."""
    axis = {parts_text(parts): {"scheme": parts_scheme(parts)} for parts in subsets}
    return context.lab.run(effort.sweep(context, "parts of batch norm", {AXIS: axis}, settings=effort.searched()))


def selected(result: SweepResult) -> pd.DataFrame:
    """A row per subset: the best `lr` by test accuracy, its `epochs`, and the highest rate that trains."""
    table, best = final_table(result), result.optima("test_accuracy")
    rows = []
    for row in best.to_dict("records"):
        runs = chosen(table, **{AXIS: row[AXIS]})
        usable = highest_trained_rate(runs, best_accuracy(table))
        trained = bool(row["trainable"])
        at_best = chosen(runs, rate=row["rate"])
        last = result.epochs[result.epochs["hash"].isin(at_best["hash"])]
        rows.append(
            {
                AXIS: row[AXIS],
                "lr": row["rate"] if trained else math.nan,
                "epochs": float(last.groupby("hash")["epoch"].max().mean()) if trained else math.nan,
                "highest_trained_lr": usable,
                "test_accuracy": 100 * row["mean"],
                "test_accuracy_deviation": 100 * row["deviation"],
                "n": row["n"],
            }
        )
    return pd.DataFrame(rows)


def by_rate(result: SweepResult) -> Axes:
    """Draw what every run of the search reaches against its rate."""
    runs = final_table(result)
    runs[AXIS] = runs[AXIS].map(in_symbols)
    return accuracy_against_rate(runs, series=AXIS, inks=INKS, title="Parts of batch norm")


def equal(claim: str, measured: float, expected: float) -> Check:
    """Two rates of a grid are one; undecided where one of them is not known."""
    known = not (math.isnan(measured) or math.isnan(expected))
    return check(claim, math.isclose(measured, expected) if known else None, measured=measured, expected=expected)
