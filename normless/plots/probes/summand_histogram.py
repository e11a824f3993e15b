"""How the summands of one parameter's gradient are distributed, for a few parameters."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

COLUMNS = ("parameter", "chosen", "summand")


def summand_histogram(summands: pd.DataFrame, ax: Axes | None = None, *, bins: int = 61) -> Axes:
    """Draw the share of summands by their size in standard deviations, one outline per parameter.

    Summands that are exactly 0, where a ReLU before the layer was shut, are left out and their share is named.

    Args:
        summands: a row per parameter, example and position: ``parameter`` (its index), ``chosen`` (why it was taken),
            and ``summand``.
        ax: where to draw; a new figure without it.
        bins: how many, over three root mean squares to either side; what lies beyond is in the outermost.

    Raises:
        ValueError: a column is missing, the table is empty, or there is no bin.
    """
    require_columns(summands, COLUMNS, "The histogram of summands")
    if bins < 1:
        raise ValueError(f"Expected at least one bin, got {bins}.")
    axes = new_axes() if ax is None else style_axes(ax)
    edges = np.linspace(-3, 3, bins + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    for index, ((chosen, parameter), rows) in enumerate(summands.groupby(["chosen", "parameter"], sort=False)):
        values = rows["summand"].to_numpy(float)
        alive = values[values != 0]
        scale = float(np.sqrt(np.square(alive).mean())) if len(alive) else 1.0
        counts, _ = np.histogram(np.clip(alive / scale, -3, 3), edges)
        zeros = 1 - len(alive) / len(values)
        ink, shares = series_ink(index), counts / max(len(alive), 1)
        axes.fill_between(middles, shares, step="mid", color=ink.light, alpha=0.15, linewidth=0)
        axes.plot(
            middles,
            shares,
            drawstyle="steps-mid",
            color=ink.light,
            linewidth=1.3,
            label=f"{chosen} ({parameter}), {zeros:.0%} zero",
        )
    axes.axvline(0, color=QUIET.light, linewidth=0.8, linestyle=":")
    # Room for the legend.
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    axes.legend(loc="upper right", frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor="linecolor")
    name_axes(axes, title="Summands of one parameter's gradient", across="summand, in root mean squares", up="share")
    return axes
