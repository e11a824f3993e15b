"""The loss along a direction, and what the gradient at its start says of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import scheme_ink
from normless.plots.tables import require_columns


def loss_along_direction(
    losses: pd.DataFrame,
    ax: Axes | None = None,
    *,
    title: str = "Loss along the update",
    across: str = "part of the update made",
    logarithmic: bool = False,
) -> Axes:
    """Draw the loss at points along a direction, measured as a line with points, by the gradient as a dashed line.

    The loss is logarithmic where the largest is more than fifty times the smallest.

    Args:
        losses: a row per point: ``point``, ``loss``, ``predicted_loss``; with ``scheme`` a pair of lines for each.
        ax: where to draw; a new figure without it.
        title: above the plot.
        across: what the points are.
        logarithmic: whether the points are drawn so; those at 0 are then left out.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(losses, ("point", "loss", "predicted_loss"), "The loss along a direction")
    axes = new_axes() if ax is None else style_axes(ax)
    shown = losses if "scheme" in losses else losses.assign(scheme="none")
    if logarithmic:
        axes.set_xscale("log")
        shown = shown[shown["point"] > 0]
    _limit(axes, shown)
    labels = []
    for scheme, rows in shown.groupby("scheme", sort=False):
        ordered, ink = rows.sort_values("point"), scheme_ink(str(scheme))
        points, values = ordered["point"].to_numpy(float), ordered["loss"].to_numpy(float)
        # It is straight, so that it can be drawn down to the axis between two points as well.
        spaced = np.geomspace if logarithmic else np.linspace
        fine = np.unique(np.concatenate([points, spaced(points[0], points[-1], 2000)]))
        axes.plot(
            fine,
            np.interp(fine, points, ordered["predicted_loss"].to_numpy(float)),
            color=ink.light,
            linestyle=(0, (4, 3)),
            linewidth=1.2,
            zorder=2,
            label=f"{scheme}, by the gradient",
        )
        axes.plot(
            points,
            values,
            color=ink.light,
            marker=ink.marker,
            markersize=4,
            linewidth=1.8,
            zorder=3,
            label=str(scheme),
        )
        name = str(scheme).partition("(")[0] if "scheme" in losses else "loss"
        labels.append(EndLabel(name, points[-1], min(values[-1], axes.get_ylim()[1]), ink.light))
    name_axes(axes, title=title, across=across, up="loss (nats); dashed: by the gradient at the start")
    label_ends(axes, labels)
    return axes


def _limit(axes: Axes, losses: pd.DataFrame) -> None:
    """Limits by what was measured; the prediction may leave them."""
    values = losses["loss"].to_numpy(float)
    drawable = values[(values > 0) & (values < float("inf"))]
    low, high = float(drawable.min(initial=1e30)), float(drawable.max(initial=0.0))
    if high > 50 * low:
        axes.set_yscale("log", nonpositive="mask")
        axes.set_ylim(low / 2, high * 2)
    else:
        axes.set_ylim(0, max(high, 1e-30) * 1.1)
