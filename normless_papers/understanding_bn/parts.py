"""The search for the best learning rate of networks with parts of batch norm (appendices B and H)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import Ink, accuracy_against_rate, series_ink
from normless_papers.artefact import Context
from normless_papers.claims import Estimate
from normless_papers.effort import Effort
from normless_papers.runs import Runs, carry_out, chosen, estimate
from normless_papers.trained import best_accuracy, highest_trained_rate
from normless_papers.understanding_bn.protocol import PARTS, SUBSETS, parts_scheme, parts_text
from normless_papers.understanding_bn.rates import best_rate

AXIS = "parts"
_NAMES = {"gamma": "γ", "beta": "β", "mu": "μ", "sigma2": "σ²"}


def in_symbols(parts: str) -> str:
    """A subset as figures write it: {γ, β, μ, σ²}."""
    return "{" + ", ".join(_NAMES[part] for part in parts.split(", ") if part) + "}"


INKS: dict[str, Ink] = {in_symbols(parts_text(parts)): series_ink(place) for place, parts in enumerate(SUBSETS)}


@dataclass(frozen=True)
class PartsRuns:
    """Runs of networks with some subsets of batch norm's parts, at every rate of a grid.

    Attributes:
        runs: axis `parts`; in the table `last_epoch`, the epochs after all doublings.
    """

    runs: Runs

    def of(self, parts: str) -> pd.DataFrame:
        """The runs of one subset."""
        return self.runs.chosen(**{AXIS: parts})

    @property
    def control(self) -> Estimate:
        """The accuracy of batch norm with all its parts at its best rate."""
        return best_accuracy(self.of(parts_text(PARTS)))

    def highest_trained(self, parts: str) -> float:
        """The highest rate that a subset trains at; see `normless_papers.trained.highest_trained_rate`."""
        return highest_trained_rate(self.of(parts), self.control)

    def at_best(self, parts: str) -> pd.DataFrame:
        """The runs of one subset at its best rate; none where it trains at no rate."""
        runs = self.of(parts)
        return runs.iloc[:0] if self.highest_trained(parts) == 0 else chosen(runs, rate=best_rate(runs))


def searched(context: Context, effort: Effort, subsets: Sequence[tuple[str, ...]]) -> PartsRuns:
    """Carry out the search for the best learning rate of networks with some subsets of batch norm's parts."""
    axis = {parts_text(parts): {"scheme": parts_scheme(parts)} for parts in subsets}
    sweep = effort.sweep(context, "parts of batch norm", {AXIS: axis}, **effort.variants["search"])
    runs = carry_out(context, sweep, reduction=effort.reduction(context))
    last = runs.table["epochs"].astype(float) * 2 ** runs.table["doublings"].astype(float).fillna(0)
    return PartsRuns(replace(runs, table=runs.table.assign(last_epoch=last)))


def selected(runs: PartsRuns) -> pd.DataFrame:
    """A row per subset: the best `lr` by test accuracy, its `epochs`, and the highest rate that trains."""
    rows = []
    for parts in runs.runs.labels(AXIS):
        best = runs.at_best(parts)
        accuracy = estimate(best, "test_accuracy")
        rows.append(
            {
                AXIS: parts,
                "lr": float(best["rate"].iloc[0]) if len(best) else math.nan,
                "epochs": float(best["last_epoch"].mean()) if len(best) else math.nan,
                "highest_trained_lr": runs.highest_trained(parts),
                "test_accuracy": accuracy.mean,
                "test_accuracy_deviation": accuracy.deviation,
                "n": accuracy.n if len(best) else 0,
            }
        )
    return pd.DataFrame(rows)


def by_rate(runs: PartsRuns) -> Axes:
    """Draw what every run of the search reaches against its rate."""
    table = runs.runs.table
    table = table.assign(**{AXIS: table[AXIS].map(in_symbols)})
    return accuracy_against_rate(table, series=AXIS, inks=INKS, title="Parts of batch norm")
