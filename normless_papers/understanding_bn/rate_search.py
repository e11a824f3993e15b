"""The search for a learning rate and a number of epochs (section 1.2, appendices B and H)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import Ink, accuracy_against_rate, series_ink
from normless.train import step
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, check, larger
from normless_papers.effort import Effort
from normless_papers.runs import Runs, carry_out, chosen, estimate
from normless_papers.trained import best_accuracy, highest_trained_rate, runs_do_not_train
from normless_papers.understanding_bn.best_rates import best_rate, highest_decade, is_rate
from normless_papers.understanding_bn.protocol import PARTS, SUBSETS, parts_scheme, parts_text

AXIS = "parts"
WHOLE, NONE = parts_text(PARTS), ""
# Drops are located to a thousandth of a training.
_SHARES = 1000
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
    """Draw the accuracy of every run of the search against its rate."""
    table = runs.runs.table
    table = table.assign(**{AXIS: table[AXIS].map(in_symbols)})
    return accuracy_against_rate(table, series=AXIS, inks=INKS, title="Parts of batch norm")


@dataclass(frozen=True)
class Searched:
    """The result of the search, and its schedule.

    Attributes:
        runs: with batch norm and without.
        drops: the shares of a training after which the schedule lowers the rate.
        factors: the rate before over the rate after each drop.
    """

    runs: PartsRuns
    drops: tuple[float, ...]
    factors: tuple[float, ...]


def _experimental_setup(outcome: Searched) -> list[Check]:
    runs, control = outcome.runs, outcome.runs.control
    with_norm, without = (highest_decade(runs.of(parts), control) for parts in (WHOLE, NONE))
    largest = runs.runs.table["rate"].max()
    return [
        check(
            "The schedule divides the rate by 10 after 50 % and 75 % of the training, and nowhere else.",
            outcome.drops == (0.5, 0.75) and outcome.factors == (10.0, 10.0),
            drops=len(outcome.drops),
            first=min(outcome.drops, default=float("nan")),
            last=max(outcome.drops, default=float("nan")),
            factor=max(outcome.factors, default=float("nan")),
        ),
        at_scale(
            is_rate("With batch norm the search selects the rate 0.1.", best_rate(runs.at_best(WHOLE)), 0.1),
            runs.runs.reduction,
        ),
        at_scale(
            is_rate("Without it the largest usable rate is 0.0001.", runs.highest_trained(NONE), 1e-4),
            runs.runs.reduction,
        ),
        larger("The largest usable rate is larger with batch norm (log₁₀ of the rates).", with_norm, without),
        runs_do_not_train(
            f"Without batch norm training at the largest rate, {largest:g}, fails.",
            chosen(runs.of(NONE), rate=largest),
            runs.of(WHOLE),
        ),
    ]


@artefact("understanding-bn/experimental-setup", basis="training", checks=_experimental_setup)
def experimental_setup(context: Context, *, effort: Effort) -> Evidence:
    """Appendix B: the search returns a rate and a number of epochs for each network, 0.1 with batch norm."""
    runs = searched(context, effort, (PARTS, ()))
    best = {row[AXIS]: row for row in selected(runs).to_dict("records")}
    places = [place for place in range(1, _SHARES) if step(place / _SHARES) < step((place - 1) / _SHARES)]
    drops = tuple(place / _SHARES for place in places)
    factors = tuple(round(step((place - 1) / _SHARES) / step(place / _SHARES), 12) for place in places)
    values: dict[str, Any] = {
        "lr_grid": ", ".join(f"{rate:g}" for rate in sorted(effort.rates.rates, reverse=True)),
        "momentum": effort.settings["momentum"],
        "weight_decay": effort.settings["weight_decay"],
        "batch_size": effort.batch_size,
        "initial_epochs": effort.epochs,
        "drops_at": ", ".join(f"{share:g}" for share in drops),
        "drop_factor": max(factors),
        "selected rate with batch norm": best[WHOLE]["lr"],
        "selected epochs with batch norm": best[WHOLE]["epochs"],
        "selected rate without": best[NONE]["lr"],
        "selected epochs without": best[NONE]["epochs"],
        "largest usable rate with batch norm": best[WHOLE]["highest_trained_lr"],
        "largest usable rate without": best[NONE]["highest_trained_lr"],
        "configurations searched": len(runs.runs.summary((AXIS, "rate"), ("test_accuracy",))),
    }
    return runs.runs.evidence(
        pd.DataFrame([{"quantity": name, "value": value} for name, value in values.items()]),
        lambda: by_rate(runs),
        facts=Searched(runs, drops, factors),
        on=("quantity",),
        remarks=(
            "The paper's initial 300 epochs contradict the numbers it reports, which are 165 doubled: the search "
            "starts at 165.",
        ),
    )
