"""Bjorck et al., the search for a learning rate and epochs (section 1.2, appendix B), and batch norm's parts (H)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import Ink, accuracy_against_epoch, accuracy_against_rate, new_panels, series_ink
from normless_lab.train import step
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import (
    Claim,
    Estimate,
    at_scale,
    check,
    difference,
    larger,
    quantity_table,
    replicates,
    within,
)
from normless_papers.claims.declared import ClaimRow
from normless_papers.claims.training import best_accuracy, runs_do_not_train
from normless_papers.evidence import with_quantities
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs, chosen, estimate

# "For initialization, we use the Xavier-scheme [10]" (appendix B), with norms and without.
_XAVIER = " + Reinitialize(kind='xavier')"
SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        "none": "xavier",
        "batch norm": "batch_norm(initialization='xavier')",
        "batch norm on top": f"only_top_norm{_XAVIER}",
        "alternating": f"alternating_batch_norm{_XAVIER}",
    }
)

PARTS = ("gamma", "beta", "mu", "sigma2")
SUBSETS: tuple[tuple[str, ...], ...] = (
    PARTS,
    ("gamma", "mu", "sigma2"),
    ("beta", "mu", "sigma2"),
    ("mu", "sigma2"),
    ("sigma2",),
    ("mu",),
    (),
)
"""The subsets of batch norm's parts in table 2."""

AXIS = "parts"
# The subsets as text, as the published tables have them.
WHOLE, _, _, NORMALIZED, SCALED, CENTRED, NONE = TEXTS = [", ".join(parts) for parts in SUBSETS]
_SYMBOLS = {"gamma": "γ", "beta": "β", "mu": "μ", "sigma2": "σ²"}
# A network with no achievable rate counts with this share of the smallest rate tried.
_BELOW = 0.5
# Accuracies are equally good if they differ by at most this, in percentage points.
_AS_GOOD = 1.0
# Resolution of the drops' location, per training.
_SHARES = 1000


def parts_scheme(parts: Sequence[str]) -> str:
    """Return the scheme that keeps some of batch norm's parts, with Xavier's weights."""
    if len(parts) in (0, len(PARTS)):
        return SCHEMES["batch norm" if parts else "none"]
    names = {"mean": "mu", "variance": "sigma2", "gamma": "gamma", "beta": "beta"}
    arguments = ", ".join(f"{name}={part in parts}" for name, part in names.items())
    return f"partial_batch_norm({arguments}){_XAVIER}"


def in_symbols(parts: str) -> str:
    """Format a subset for figures: {γ, β, μ, σ²}."""
    return "{" + ", ".join(_SYMBOLS[part] for part in parts.split(", ") if part) + "}"


INKS: dict[str, Ink] = {in_symbols(parts): series_ink(place) for place, parts in enumerate(TEXTS)}


def best_rate(runs: pd.DataFrame) -> float:
    """Return the learning rate with the highest mean test accuracy, the lower one of equals; NaN without runs."""
    means = {float(rate): best_accuracy(group).mean for rate, group in runs.groupby("rate")}  # type: ignore[arg-type]
    known = {rate: mean for rate, mean in means.items() if not math.isnan(mean)}
    return max(sorted(known), key=known.__getitem__, default=math.nan)


def highest_achievable_rate(runs: pd.DataFrame) -> float:
    """Return the largest learning rate at which no run diverges or ends at chance; 0 for none, NaN without runs.

    "Achievable learning rates are rates for which the networks don't diverge or remain at the accuracy of random
    guessing" (appendix J), where a loss above 10³ is divergence (section 3.4): how well they train does not matter.
    """
    finished = runs[runs["outcome"] != "failed"]
    if finished.empty:
        return math.nan
    achieved = (finished["outcome"] == "trained").groupby(finished["rate"]).all()
    return float(max(achieved.index[achieved], default=0.0))


def best_decade(runs: pd.DataFrame) -> Estimate:
    """Estimate log₁₀ of `best_rate` over seeds, or of half the smallest rate if none is achievable."""
    return _by_seed(runs, lambda own: 0.0 if highest_achievable_rate(own) == 0 else best_rate(own))


def highest_decade(runs: pd.DataFrame) -> Estimate:
    """Estimate log₁₀ of `highest_achievable_rate` over seeds; half the smallest rate tried counts for 0."""
    return _by_seed(runs, highest_achievable_rate)


def is_rate(claim: str, measured: float, expected: float) -> Claim:
    """Check that two learning rates are equal; undecided if one of them is unknown."""
    known = not (math.isnan(measured) or math.isnan(expected))
    return check(claim, math.isclose(measured, expected) if known else None, measured=measured, expected=expected)


def _by_seed(runs: pd.DataFrame, rate_of: Callable[[pd.DataFrame], float]) -> Estimate:
    finished = runs[runs["outcome"] != "failed"]
    if finished.empty:
        return Estimate(math.nan, math.nan)
    below = _BELOW * float(finished["rate"].min())
    rates = {seed: rate_of(own) for seed, own in finished.groupby("seed")}
    return replicates(pd.Series({seed: np.log10(rate or below) for seed, rate in rates.items()}, dtype=float))


@dataclass(frozen=True)
class RateSearch:
    """Runs of some networks at every rate of a grid, by `axis`."""

    runs: Runs
    axis: str

    def of(self, name: str) -> pd.DataFrame:
        """Return the runs of one network."""
        return self.runs.chosen(**{self.axis: name})

    def highest(self, name: str) -> float:
        """Return the highest achievable rate of a network; see `highest_achievable_rate`."""
        return highest_achievable_rate(self.of(name))

    def at_best(self, name: str) -> pd.DataFrame:
        """Return the runs of a network at its best rate; none if no rate is achievable."""
        runs = self.of(name)
        return runs.iloc[:0] if self.highest(name) == 0 else chosen(runs, rate=best_rate(runs))

    def claimed(self, row: ClaimRow) -> list[Claim]:
        """Return the check of a declared claim, a row with one of these keys.

        - `highest_is` or `best_is: [name, rate]`: the rate of a network is the published one, which is decided only
          for the paper's set-up;
        - `highest_above` or `best_above: [name, name]`: that of one network is above another's;
        - `longer: [name, name]`: at its best rate one network takes more epochs than another, in the paper's set-up;
        - `highest_as_good: name`: no lower rate is more accurate than the highest by more than a point;
        - `gain: [low, high]`, of γ and β, and `costs: name`, which loses more than that gain.
        """
        claim: str = row["claim"]
        ((form, given),) = ((key, value) for key, value in row.items() if key not in ("claim", "each"))
        reduction = self.runs.reduction
        if form in ("highest_is", "best_is"):
            name, printed = given
            measured = self.highest(name) if form == "highest_is" else best_rate(self.at_best(name))
            return [at_scale(is_rate(claim, measured, printed), reduction)]
        if form in ("highest_above", "best_above"):
            decade = highest_decade if form == "highest_above" else best_decade
            pair = (replace(decade(self.of(name)), name=name) for name in given)
            return [larger(f"{claim} (log₁₀ of the rates).", *pair)]
        if form == "longer":
            epochs = (estimate(self.at_best(name), "last_epoch") for name in given)
            return [at_scale(larger(claim, *epochs), reduction, of="shape")]
        if form == "highest_as_good":
            return [self._highest_as_good(claim, given)]
        accuracy, gain = _accuracies(self)
        if form == "gain":
            return [at_scale(within(claim, gain, *given), reduction)]
        return [larger(claim, difference(accuracy[NORMALIZED], accuracy[given]), gain)]

    def _highest_as_good(self, claim: str, name: str) -> Claim:
        own, highest = self.of(name), self.highest(name)
        lower = own[own["rate"] < highest]
        if math.isnan(highest) or lower.empty:
            return check(claim, None, highest=highest)
        return larger(claim, best_accuracy(chosen(own, rate=highest)), best_accuracy(lower), by=-_AS_GOOD)

    def draw(self, title: str, inks: Mapping[str, Ink], spoken: Callable[[str], str]) -> Axes:
        """Draw the accuracy of every run against its rate."""
        table = self.runs.table
        return accuracy_against_rate(
            table.assign(**{self.axis: table[self.axis].map(spoken)}), series=self.axis, inks=inks, title=title
        )


def _search(context: Context, *, effort: Effort, subsets: Sequence[Sequence[str]]) -> TrainingSweeps:
    """Declare the search with some subsets of batch norm's parts."""
    axis = {", ".join(parts): {"scheme": parts_scheme(parts)} for parts in subsets}
    sweep = effort.sweep(context, "parts of batch norm", {AXIS: axis}, **effort.variants["search"])
    return effort.training(context, sweep)


def _searched(runs: Runs) -> RateSearch:
    """Return the runs of a search; `last_epoch` has the epochs after all doublings."""
    last = runs.table["epochs"].astype(float) * 2 ** runs.table["doublings"].astype(float).fillna(0)
    return RateSearch(replace(runs, table=runs.table.assign(last_epoch=last)), AXIS)


def _selected(search: RateSearch) -> pd.DataFrame:
    """Tabulate by subset the best `lr` by test accuracy, its `epochs`, and the highest achievable rate."""
    rows = []
    for parts in search.runs.labels(AXIS):
        best = search.at_best(parts)
        accuracy = estimate(best, "test_accuracy")
        rows.append(
            {
                AXIS: parts,
                "lr": float(best["rate"].iloc[0]) if len(best) else math.nan,
                "epochs": float(best["last_epoch"].mean()) if len(best) else math.nan,
                "highest_achievable_lr": search.highest(parts),
                "test_accuracy": accuracy.mean,
                "test_accuracy_deviation": accuracy.deviation,
                "n": accuracy.n if len(best) else 0,
            }
        )
    return pd.DataFrame(rows)


def _experimental_setup(facts: tuple[RateSearch, Sequence[float], Sequence[float]]) -> list[Claim]:
    """Check the search, the relative epochs of the rate's drops, and the factors of the drops."""
    search, drops, factors = facts
    largest = search.runs.table["rate"].max()
    rows: list[ClaimRow] = [
        {"claim": "With batch norm the search selects the rate 0.1.", "best_is": [WHOLE, 0.1]},
        {"claim": "Without it the largest usable rate is 0.0001.", "highest_is": [NONE, 1e-4]},
        {"claim": "The largest usable rate is larger with batch norm", "highest_above": [WHOLE, NONE]},
    ]
    fails = f"Without batch norm training at the largest rate, {largest:g}, fails."
    return [
        check(
            "The schedule divides the rate by 10 after 50 % and 75 % of the training, and only then.",
            tuple(drops) == (0.5, 0.75) and tuple(factors) == (10.0, 10.0),
            drops=len(drops),
            first=min(drops, default=math.nan),
            last=max(drops, default=math.nan),
            factor=max(factors, default=math.nan),
        ),
        *(own for row in rows for own in search.claimed(row)),
        runs_do_not_train(fails, chosen(search.of(NONE), rate=largest), search.of(WHOLE)),
    ]


@artefact(
    "understanding-bn/experimental-setup",
    basis="training",
    checks=_experimental_setup,
    trains=partial(_search, subsets=(PARTS, ())),
)
def experimental_setup(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    search = _searched(runs)
    best = _selected(search).set_index(AXIS).to_dict("index")
    places = [place for place in range(1, _SHARES) if step(place / _SHARES) < step((place - 1) / _SHARES)]
    drops = [place / _SHARES for place in places]
    factors = [round(step((place - 1) / _SHARES) / step(place / _SHARES), 12) for place in places]
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
        "largest usable rate with batch norm": best[WHOLE]["highest_achievable_lr"],
        "largest usable rate without": best[NONE]["highest_achievable_lr"],
        "configurations searched": len(search.runs.summary((AXIS, "rate"), ("test_accuracy",))),
    }
    return search.runs.evidence(
        with_quantities(values),
        lambda: search.draw("Parts of batch norm", INKS, in_symbols),
        facts=(search, drops, factors),
    )


@artefact("understanding-bn/table-2", basis="training", trains=partial(_search, subsets=SUBSETS))
def best_rates_of_parts(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    search = _searched(runs)
    return search.runs.evidence(
        _selected(search),
        lambda: search.draw("Parts of batch norm", INKS, in_symbols),
        facts=search,
        on=(AXIS,),
    )


def _accuracies(search: RateSearch) -> tuple[dict[str, Estimate], Estimate]:
    """Return the accuracy of every subset at its best rate, diverged runs at chance; and the gain from γ and β."""
    accuracy = {parts: best_accuracy(search.of(parts)) for parts in search.runs.labels(AXIS)}
    return accuracy, difference(accuracy[WHOLE], accuracy[NORMALIZED])


@artefact("understanding-bn/figure-17", basis="training", trains=partial(_search, subsets=SUBSETS))
def curves_of_parts(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    search = _searched(runs)
    accuracy, gain = _accuracies(search)
    named = {f"test accuracy with {in_symbols(parts)}": own for parts, own in accuracy.items()}
    return search.runs.evidence(
        quantity_table({"gain_from_whole_affine_part_percent": gain} | named),
        lambda: _panels(search),
        facts=search,
    )


def _panels(search: RateSearch) -> Axes:
    """Draw the affine part on the left, and μ and σ² without it on the right, as in the paper."""
    tried = map(search.of, search.runs.labels(AXIS))
    best = pd.concat([chosen(runs, rate=best_rate(runs)) for runs in tried])
    epochs = search.runs.epochs
    epochs = epochs[epochs["hash"].isin(best["hash"])]
    epochs = epochs.assign(**{AXIS: epochs[AXIS].map(in_symbols)})
    axes = new_panels(1, 2)
    sides = ((TEXTS[:4], "γ and β beside μ and σ²"), (TEXTS[3:], "μ and σ² without γ and β"))
    for panel, (subsets, title) in zip(axes, sides, strict=True):
        rows = epochs[epochs[AXIS].isin(map(in_symbols, subsets))]
        accuracy_against_epoch(rows, panel, series=AXIS, inks=INKS, title=title)
    return axes[0]
