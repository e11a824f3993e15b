"""How any number of a training run goes with its epochs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import Ink
from normless.plots.tables import require_columns


def number_against_epoch(
    epochs: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    column: str,
    inks: Mapping[str, Ink],
    title: str,
    up: str,
) -> Axes:
    """Draw a number against the epoch, a named line through the mean of each series; every run is a thin line.

    Args:
        epochs: a row per run and epoch: the columns `series`, ``epoch``, ``hash`` (of the run) and `column`.
        ax: where to draw; a new figure without it.
        series: the column of the names of the lines.
        column: what is drawn; epochs where it is not finite are left out.
        inks: of each name.
        title: of the figure.
        up: what the number is, with its unit.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(epochs, (series, "epoch", "hash", column), "A number against the epoch")
    axes = new_axes() if ax is None else style_axes(ax)
    labels = []
    known = epochs[np.isfinite(epochs[column].astype(float))]
    for name, rows in known.groupby(series, sort=False):
        ink = inks[str(name)]
        for _, run in rows.groupby("hash", sort=False):
            axes.plot(run["epoch"], run[column], color=ink.light, linewidth=0.7, alpha=0.5, label="_run", zorder=2)
        means = rows.groupby("epoch")[column].mean()
        axes.plot(
            means.index,
            means,
            color=ink.light,
            marker=ink.marker,
            markersize=4.5,
            linewidth=1.8,
            label=str(name),
            zorder=3,
        )
        labels.append(EndLabel(str(name), float(means.index[-1]), float(means.iloc[-1]), ink.light))
    axes.set_xlim(0.5, float(epochs["epoch"].max()) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    name_axes(axes, title=title, across="epoch; thick lines are means over replicates", up=up)
    axes.set_ylim(*axes.get_ylim())
    label_ends(axes, labels)
    return axes
