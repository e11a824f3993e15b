"""Which networks trained: their accuracy against that of the artefact's control."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from normless_lab.sweeps import SHARE, trained_threshold
from normless_papers.claims import UNKNOWN, Check, Estimate, check, larger, replicates

# Share of the possible gain that is enough to compare with where it is the photographs, or so short a training as the
# paper's own, that keep a control from half of it.
LEAST = 0.25


def best_accuracy(runs: pd.DataFrame, best: int | None = None) -> Estimate:
    """The test accuracy at the learning rate with the highest mean over the `best` runs, or all; NaN without runs.

    Of a table of runs of one network: `rate`, `seed`, `outcome`, `test_accuracy`, `chance_accuracy`. Diverged ones
    count as chance, failed ones not at all.
    """
    # By NumPy, since thousands of such tables are small, and pandas takes milliseconds for each.
    outcomes, rates = runs["outcome"].to_numpy(dtype=object), runs["rate"].to_numpy(dtype=float)
    reached, chance = (runs[f"{name}_accuracy"].astype(float).to_numpy() for name in ("test", "chance"))
    values = pd.Series(np.where((outcomes == "diverged") | np.isnan(reached), chance, reached), index=runs["seed"])
    counted = outcomes != "failed"
    tried = [counted & (rates == rate) for rate in np.unique(rates[counted])]
    estimates = [UNKNOWN, *(replicates(values[at], best) for at in tried)]
    return max(estimates, key=lambda one: -math.inf if math.isnan(one.mean) else one.mean)


def trains(claim: str, accuracy: Estimate, control: Estimate, chance: float, *, least: float = SHARE) -> Check:
    """Whether a network trains: whether it has at least half of the control's gain over chance.

    With a, c and p the accuracy, the control's and that of chance in percent, it trains where a - p > ½ (c - p),
    decided as in `larger`. A control with c - p < ½ (100 - p), half of the possible gain, decides nothing: then the
    check holds if the network has that much, and is inconclusive otherwise. `least` takes the place of that ½ where
    the paper's own training is too short. `half_width` is that of a less what is needed.
    """
    needed = control.scaled(SHARE, (1 - SHARE) * chance)
    compared = larger(claim, accuracy, needed)
    numbers = {"accuracy": accuracy.mean, "control": control.mean, "chance": chance, "needed": needed.mean}
    numbers["half_width"] = compared.numbers["half_width"]
    if larger(claim, accuracy, Estimate(trained_threshold(100, chance))).verdict == "holds":
        return check(claim, True, **numbers)
    if not is_control(control, chance, least=least):
        return check(claim, None, **numbers)
    return Check(claim, compared.verdict, numbers)


def opposite(one: Check) -> Check:
    """The check that holds where another fails, and is inconclusive where that is; `needed` is `needed_below`."""
    numbers = {"needed_below" if name == "needed" else name: value for name, value in one.numbers.items()}
    return check(one.claim, None if one.verdict == "inconclusive" else one.verdict == "fails", **numbers)


def is_control(control: Estimate, chance: float, *, least: float = SHARE) -> bool:
    """Whether a network learned enough for others to be compared with it: c - p ≥ ½ (1 - p), see `trains`."""
    return control.mean >= trained_threshold(100, chance, least)


def runs_train(
    claim: str, runs: pd.DataFrame, control: pd.DataFrame, *, best: int | None = None, least: float = SHARE
) -> Check:
    """`trains` of tables of runs, each at its best rate."""
    chance = chance_of(pd.concat([runs, control]))
    return trains(claim, best_accuracy(runs, best), best_accuracy(control, best), chance, least=least)


def runs_do_not_train(
    claim: str, runs: pd.DataFrame, control: pd.DataFrame, *, best: int | None = None, least: float = SHARE
) -> Check:
    """The opposite of `runs_train`, inconclusive where that is."""
    return opposite(runs_train(claim, runs, control, best=best, least=least))


def highest_trained_rate(runs: pd.DataFrame, control: Estimate) -> float:
    """The largest learning rate at which a network trains, by the means over replicates; 0 if it trains at none.

    NaN if all runs failed, or if no rate trains and the control learned too little to decide.
    """
    runs = runs[runs["outcome"] != "failed"]
    if runs.empty:
        return math.nan
    chance = chance_of(runs)
    means = {float(rate): best_accuracy(group).mean for rate, group in runs.groupby("rate")}  # type: ignore[arg-type]
    decides = is_control(control, chance)
    needed = trained_threshold(control.mean if decides else 100, chance)
    trained = [rate for rate, mean in means.items() if mean > needed]
    return max(trained, default=0.0 if decides else math.nan)


def chance_of(runs: pd.DataFrame) -> float:
    """The accuracy of the best constant guess on the test set of some runs, in their unit; NaN where none has it."""
    return float(runs["chance_accuracy"].astype(float).max())
