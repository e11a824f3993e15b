"""Gradient norms above their lower bounds, block by block."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import QUIET
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns


def gradient_bounds_against_block(
    bounds: pd.DataFrame, ax: Axes | None = None, *, across: str = "block", by: str = "the block's input"
) -> Axes:
    """Draw each example's gradient norm at every block's input as a point above its lower bound (logarithmic).

    Lines are medians over examples; a bound that is not positive says nothing and is left out.

    Args:
        bounds: a row per block and example: ``block`` (1, 2, …), ``gradient_norm``, ``bound``.
        ax: where to draw; a new figure without it.
        across: what ``block`` counts, where that is something else.
        by: what the gradients are by.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(bounds, ("block", "gradient_norm", "bound"), "Gradient bounds against block")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    labels = []
    for column, name, colour in (
        ("gradient_norm", "measured", series_ink(0).light),
        ("bound", "lower bound", QUIET.light),
    ):
        values = bounds[column].where(bounds[column] > 0)
        axes.plot(
            bounds["block"],
            values,
            linestyle="none",
            marker=".",
            markersize=3,
            markeredgewidth=0,
            alpha=0.35,
            color=colour,
            label=f"{name}, examples",
        )
        medians = values.groupby(bounds["block"]).median()
        axes.plot(medians.index, medians, color=colour, linewidth=1.6, label=f"{name}, median")
        known = medians.dropna()
        if len(known):
            labels.append(EndLabel(name, float(known.index[-1]), float(known.iloc[-1]), colour))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    name_axes(axes, title="Gradients cannot be small", across=across, up=f"‖gradient‖ by {by}")
    # Names are placed by limits that no longer move.
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, labels)
    return axes
