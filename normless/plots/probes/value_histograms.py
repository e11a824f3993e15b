"""Histograms of activations and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.palette import QUIET, scheme_ink
from normless.plots.tables import require_columns

_GROUPS = ("scheme", "parameter", "layer", "call", "channel")


def value_histograms(
    histograms: pd.DataFrame,
    ax: Axes | None = None,
    *,
    title: str = "Histogram",
    across: str = "value",
    logarithmic: bool = False,
) -> Axes:
    """Draw histograms as filled outlines, their height the density per unit of the value.

    Args:
        histograms: a row per bin: ``low``, ``high``, ``density``; a histogram is what agrees in ``scheme``,
            ``parameter``, ``layer``, ``call`` and ``channel``, as far as the table has them. With ``scheme`` each has
            that scheme's colour.
        ax: where to draw; a new figure without it.
        title: above the plot.
        across: what the values are.
        logarithmic: whether the density is drawn so, which shows the tails.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(histograms, ("low", "high", "density"), "A histogram")
    axes = new_axes() if ax is None else style_axes(ax)
    groups = [name for name in _GROUPS if name in histograms]
    parts: Any = histograms.groupby(groups, sort=False, dropna=False) if groups else [((), histograms)]
    for _, rows in parts:
        ordered = rows.sort_values("low")
        edges = np.append(ordered["low"].to_numpy(float), ordered["high"].to_numpy(float)[-1])
        scheme = str(ordered["scheme"].iloc[0]) if "scheme" in ordered else None
        colour = QUIET.light if scheme is None else scheme_ink(scheme).light
        axes.stairs(ordered["density"], edges, fill=True, color=colour, alpha=0.22, linewidth=0, zorder=2)
        axes.stairs(ordered["density"], edges, color=colour, linewidth=1.2, zorder=3, label=scheme)
    axes.axvline(0, color=QUIET.light, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    if logarithmic:
        heights = histograms["density"].to_numpy(float)
        axes.set_yscale("log")
        axes.set_ylim(heights[heights > 0].min(initial=1e300) / 2, heights.max(initial=1e-300) * 2)
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    name_axes(axes, title=title, across=across, up="density")
    return axes
