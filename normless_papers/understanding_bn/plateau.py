"""Whether learning has plateaued at its initial rate, as the paper drops the rate (appendix B)."""

from __future__ import annotations

import math

import pandas as pd

from normless.train import WINDOW

# Points of training accuracy.
_RISE = 1.0


def plateaus(epochs: pd.DataFrame) -> dict[str, bool]:
    """Whether each run's training accuracy no longer rises before the first drop of its rate.

    "We divide the learning rate by 10 after epoch 50% and 75%, at which point learning has typically plateaued" names
    no rule; this is ours: with windows of w = ⌈epochs at the initial rate / 10⌉ epochs, the mean of the last window
    is less than 1 point above that of the window before it.
    """
    flags = {}
    for name, rows in epochs.groupby("hash") if len(epochs) else ():
        first = rows.sort_values("epoch")
        accuracy = 100 * first[first["epoch_rate"] >= first["epoch_rate"].max()]["training_accuracy"].to_numpy(float)
        if len(accuracy) < 2:
            continue
        width = min(math.ceil(WINDOW * len(accuracy)), len(accuracy) // 2)
        rise = float(accuracy[-width:].mean() - accuracy[-2 * width : -width].mean())
        flags[str(name)] = rise < _RISE
    return flags
