"""Whether networks train: their accuracy compared with that of the artefact's control."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from normless_lab.sweeps import SHARE, trained_threshold
from normless_papers.claims.checks import Claim, check, larger
from normless_papers.claims.estimates import UNKNOWN, Estimate, replicates

# A control with this share of the possible gain decides where photographs, or the paper's own short training, keep it
# below half.
LEAST = 0.25


def best_accuracy(runs: pd.DataFrame, best: int | None = None) -> Estimate:
    """Return the test accuracy at the learning rate with the highest mean over the `best` runs, or all; NaN if empty.

    Args:
        runs: the runs of one network: `rate`, `seed`, `outcome`, `test_accuracy`, `chance_accuracy`. Diverged runs
            count as chance; failed runs do not count.
    """
    # NumPy, since pandas takes milliseconds for each of thousands of small tables.
    outcomes, rates = runs["outcome"].to_numpy(dtype=object), runs["rate"].to_numpy(dtype=float)
    reached, chance = (runs[f"{name}_accuracy"].astype(float).to_numpy() for name in ("test", "chance"))
    values = pd.Series(np.where((outcomes == "diverged") | np.isnan(reached), chance, reached), index=runs["seed"])
    counted = outcomes != "failed"
    tried = [counted & (rates == rate) for rate in np.unique(rates[counted])]
    estimates = [UNKNOWN, *(replicates(values[at], best) for at in tried)]
    return max(estimates, key=lambda estimate: -math.inf if math.isnan(estimate.mean) else estimate.mean)


def trains(claim: str, accuracy: Estimate, control: Estimate, chance: float, *, least: float = SHARE) -> Claim:
    """Check that a network trains: that it has at least half of the control's gain over chance.

    With a, c and p the accuracies of the network, the control and chance in percent, it trains if a - p > ½ (c - p),
    decided by `larger`. A control with c - p < ½ (100 - p), half of the possible gain, decides nothing: then the
    check holds if the network has that much, and is inconclusive otherwise. `least` replaces that ½ where the paper's
    own training is too short. `half_width` is that of a minus the needed accuracy.
    """
    needed = control.scaled(SHARE, (1 - SHARE) * chance)
    comparison = larger(claim, accuracy, needed)
    numbers = {"accuracy": accuracy.mean, "control": control.mean, "chance": chance, "needed": needed.mean}
    numbers["half_width"] = comparison.numbers["half_width"]
    if larger(claim, accuracy, trained_threshold(100, chance)).verdict == "holds":
        return check(claim, True, **numbers)
    if not is_control(control, chance, least=least):
        return check(claim, None, **numbers)
    return Claim(claim, comparison.verdict, numbers)


def opposite(trained: Claim) -> Claim:
    """Return the check that holds where `trains` fails; the number `needed` becomes `needed_below`."""
    numbers = {"needed_below" if name == "needed" else name: value for name, value in trained.numbers.items()}
    holds = None if trained.verdict == "inconclusive" else trained.verdict == "fails"
    return check(trained.claim, holds, **numbers)


def is_control(control: Estimate, chance: float, *, least: float = SHARE) -> bool:
    """Whether a network learned enough to be a control: c - p ≥ ½ (100 - p), see `trains`."""
    return control.mean >= trained_threshold(100, chance, least)


def runs_train(
    claim: str, runs: pd.DataFrame, control: pd.DataFrame, *, best: int | None = None, least: float = SHARE
) -> Claim:
    """Check `trains` of tables of runs, each at its best rate."""
    chance = chance_of(pd.concat([runs, control]))
    return trains(claim, best_accuracy(runs, best), best_accuracy(control, best), chance, least=least)


def runs_do_not_train(
    claim: str, runs: pd.DataFrame, control: pd.DataFrame, *, best: int | None = None, least: float = SHARE
) -> Claim:
    """Check the opposite of `runs_train`."""
    return opposite(runs_train(claim, runs, control, best=best, least=least))


def chance_of(runs: pd.DataFrame) -> float:
    """Return the accuracy of the best constant guess on the test set of the runs, in their unit; NaN if unknown."""
    return float(runs["chance_accuracy"].astype(float).max())
