"""The best and the highest learning rates of networks, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from normless_papers.claims import Check, Estimate, check, replicates
from normless_papers.trained import best_accuracy, highest_trained_rate

# The rate counted for a network that trains at no rate, as a share of the smallest rate tried.
_BELOW = 0.5


def best_rate(runs: pd.DataFrame) -> float:
    """The learning rate with the highest mean test accuracy, the lower one of equals; NaN without runs."""
    means = {float(rate): best_accuracy(group).mean for rate, group in runs.groupby("rate")}  # type: ignore[arg-type]
    known = {rate: mean for rate, mean in means.items() if not math.isnan(mean)}
    return max(sorted(known), key=known.__getitem__, default=math.nan)


def best_decade(runs: pd.DataFrame, control: Estimate) -> Estimate:
    """log₁₀ of `best_rate` over seeds; where a seed's network trains at no rate, of half the smallest rate tried."""
    return _by_seed(runs, lambda own: 0.0 if highest_trained_rate(own, control) == 0 else best_rate(own))


def highest_decade(runs: pd.DataFrame, control: Estimate) -> Estimate:
    """log₁₀ of `normless_papers.trained.highest_trained_rate` over seeds.

    Where that is 0, of half the smallest rate tried; NaN where the control was trained too little to tell.
    """
    return _by_seed(runs, lambda own: highest_trained_rate(own, control))


def is_rate(claim: str, measured: float, expected: float) -> Check:
    """Whether two learning rates are equal; undecided if one of them is unknown."""
    known = not (math.isnan(measured) or math.isnan(expected))
    return check(claim, math.isclose(measured, expected) if known else None, measured=measured, expected=expected)


def _by_seed(runs: pd.DataFrame, rate_of: Callable[[pd.DataFrame], float]) -> Estimate:
    finished = runs[runs["outcome"] != "failed"]
    if finished.empty:
        return Estimate(math.nan, math.nan)
    below = _BELOW * float(finished["rate"].min())
    rates = {seed: rate_of(own) for seed, own in finished.groupby("seed")}
    return replicates(pd.Series({seed: np.log10(rate or below) for seed, rate in rates.items()}, dtype=float))
