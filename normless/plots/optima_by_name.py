"""Optima of sweeps, one method below the other."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.palette import GRID, PAPER, Ink
from normless.plots.tables import require_columns


def optima_by_name(
    optima: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    inks: Mapping[str, Ink],
    title: str,
    across: str,
) -> Axes:
    """Draw what each of some methods reaches at its optimal learning rate, one below the other, deviations as bars.

    A hollow marker is an optimum that is no training: too few of the runs trained at any rate.

    Args:
        optima: a row per method: the column `series`, `mean`, `deviation` (NaN of a single run) and `trainable`. A
            mean that is not finite is left out.
        ax: where to draw; a new figure without it.
        series: the column of the names.
        inks: of each name.
        title: of the figure.
        across: what the means are, with their unit.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(optima, (series, "mean", "deviation", "trainable"), "The figure of optima")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID.light, linewidth=0.8)
    names = [str(name) for name in optima[series]]
    for place, row in enumerate(optima.to_dict("records")):
        ink, mean = inks[names[place]], float(row["mean"])
        if not math.isfinite(mean):
            continue
        bar = float(row["deviation"]) if math.isfinite(float(row["deviation"])) else 0.0
        axes.errorbar(
            [mean],
            [place],
            xerr=[bar],
            color=ink.light,
            marker=ink.marker,
            markersize=6.5,
            markerfacecolor=ink.light if row["trainable"] else PAPER.light,
            capsize=3,
            label=names[place],
        )
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    axes.set_yticklabels([name.replace("_", " ") for name in names])
    name_axes(axes, title=title, across=across, up="")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return axes
