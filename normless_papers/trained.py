"""Which networks trained: their accuracy against that of the artefact's control."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from normless.sweeps import SHARE, trained_threshold
from normless_papers.estimates import over_draws
from normless_papers.verdict import Check, Estimate, check, larger


def best_accuracy(runs: pd.DataFrame, best: int | None = None) -> Estimate:
    """The test accuracy at the learning rate where its mean is highest.

    A run that diverged, or has no accuracy, counts as chance: it learned nothing that is left.

    Args:
        runs: a row per run of one network: `rate`, `seed`, `outcome`, `test_accuracy` and `chance_accuracy`, in one
            unit. Runs that failed with an error are left out.
        best: how many of the best runs at each rate count; all if None.

    Returns:
        The mean over replicates, by seed where all of them count; NaN where there is no run.
    """
    kept = runs[runs["outcome"] != "failed"]
    found = [Estimate(math.nan, math.nan)]
    for _, group in kept.groupby("rate"):
        learned = (group["outcome"] != "diverged") & group["test_accuracy"].notna()
        values = np.where(learned, group["test_accuracy"].astype(float), group["chance_accuracy"].astype(float))
        found.append(replicates(pd.Series(values, index=group["seed"]), best))
    return max(found, key=lambda one: -math.inf if math.isnan(one.mean) else one.mean)


def replicates(values: pd.Series, best: int | None = None, *, minimized: bool = False) -> Estimate:
    """Mean and deviation of the best replicates.

    Args:
        values: a number per replicate, indexed by seed.
        best: how many of them count; all if None.
        minimized: whether less is better.

    Returns:
        The estimate, by seed where every replicate counts: a selection of the best has no seeds to pair by.
    """
    kept = values.sort_values(ascending=minimized).iloc[: best or len(values)]
    estimate = over_draws(kept.to_numpy(dtype=float))
    if len(kept) < len(values):
        return estimate
    by_seed = {int(seed): float(value) for seed, value in values.items()}  # type: ignore[call-overload]
    return Estimate(estimate.mean, estimate.deviation, estimate.n, by_seed)


def trains(claim: str, accuracy: Estimate, control: Estimate, chance: float, *, least: float = SHARE) -> Check:
    """Whether a network trained: whether it has at least half of the control's gain over chance.

    With a, c and p the accuracy, the control's and that of chance, it trained where a - p > ½ (c - p), decided as in
    `larger`. A control with c - p < ½ (1 - p), half of what there is to gain, was itself trained too little to tell:
    then only a network that has that much, which is trained against any control, is decided. Where the paper's own
    training is so short that its control has less, `least` says what share of the gain is enough of a control.

    Args:
        claim: a sentence.
        accuracy: of the network at its best rate, in percent; see `best_accuracy`.
        control: the same of the network that it is compared with.
        chance: of the best constant guess, in percent.
        least: of the largest possible gain, what the control must have to decide.
    """
    possible = trained_threshold(100, chance)
    against = control.scaled(SHARE, (1 - SHARE) * chance)
    enough = larger(claim, accuracy, Estimate(possible))
    decided = larger(claim, accuracy, against)
    numbers = {"accuracy": accuracy.mean, "control": control.mean, "chance": chance, "needed": against.mean}
    if enough.verdict == "holds":
        return check(claim, True, **numbers)
    if not tells(control, chance, least=least):
        return check(claim, None, **numbers)
    return Check(claim, decided.verdict, numbers)


def does_not_train(
    claim: str, accuracy: Estimate, control: Estimate, chance: float, *, least: float = SHARE
) -> Check:
    """The opposite of `trains`, undecided where that is."""
    one = trains(claim, accuracy, control, chance, least=least)
    return check(claim, None if one.verdict == "inconclusive" else one.verdict == "fails", **one.numbers)


def tells(control: Estimate, chance: float, *, least: float = SHARE) -> bool:
    """Whether a control was trained enough to tell what did not train: c - p ≥ ½ (1 - p), see `trains`."""
    return control.mean >= trained_threshold(100, chance, least)


def runs_train(claim: str, runs: pd.DataFrame, control: pd.DataFrame, *, least: float = SHARE) -> Check:
    """`trains` of tables of runs, each at its best rate."""
    return trains(claim, *_accuracies(runs, control), least=least)


def runs_do_not_train(claim: str, runs: pd.DataFrame, control: pd.DataFrame, *, least: float = SHARE) -> Check:
    """`does_not_train` of tables of runs, each at its best rate."""
    return does_not_train(claim, *_accuracies(runs, control), least=least)


def _accuracies(runs: pd.DataFrame, control: pd.DataFrame) -> tuple[Estimate, Estimate, float]:
    return best_accuracy(runs), best_accuracy(control), chance_of(pd.concat([runs, control]))


def highest_trained_rate(runs: pd.DataFrame, control: Estimate) -> float:
    """The largest learning rate at which a network trained, by the means over replicates; 0 where it did at none.

    Args:
        runs: of one network, in percent, as in `best_accuracy`.
        control: see `trains`.

    Returns:
        NaN where all runs failed, or where the control was trained too little to tell.
    """
    kept = runs[runs["outcome"] != "failed"]
    if kept.empty:
        return math.nan
    chance = chance_of(kept)
    means = {float(rate): best_accuracy(group).mean for rate, group in kept.groupby("rate")}  # type: ignore[arg-type]
    possible = trained_threshold(100, chance)
    needed = trained_threshold(control.mean, chance) if control.mean >= possible else possible
    trained = [rate for rate, mean in means.items() if mean > needed]
    if not trained and not control.mean >= possible:
        return math.nan
    return max(trained, default=0.0)


def chance_of(runs: pd.DataFrame) -> float:
    """The accuracy of the best constant guess on the test set of some runs, in their unit; NaN where none has it."""
    return float(runs["chance_accuracy"].astype(float).max())
