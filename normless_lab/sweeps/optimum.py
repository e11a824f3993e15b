"""The optimum of each combination of a sweep over its learning rates, and the criterion for a trained network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

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
