"""The gradients of a network's channels, layer by layer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import scheme_ink
from normless.plots.tables import require_columns

COLUMNS = ("scheme", "order", "gradient")


def channel_gradients_by_layer(channels: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw |gradient| of the channels against the layer: each channel a point, their median a line; logarithmic.

    Args:
        channels: a row per scheme, layer and channel: ``scheme``, ``order`` (1, 2, …), ``gradient`` (of a bias of
            that channel, nats per unit).
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(channels, COLUMNS, "Channel gradients by layer")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    sizes = channels.assign(gradient=channels["gradient"].abs())
    labels = []
    for scheme, rows in sizes.groupby("scheme", sort=False):
        ink, name = scheme_ink(str(scheme)), str(scheme)
        axes.plot(
            rows["order"],
            rows["gradient"].where(rows["gradient"] > 0),
            linestyle="none",
            marker=".",
            markersize=2.5,
            markeredgewidth=0,
            alpha=0.3,
            color=ink.light,
            label=f"{name}, channels",
            rasterized=True,
        )
        median = rows.groupby("order")["gradient"].median()
        axes.plot(median.index, median, color=ink.light, linewidth=1.5, label=f"{name}, median")
        labels.append(EndLabel(name, float(median.index[-1]), float(median.iloc[-1]), ink.light))
    positive = sizes.loc[sizes["gradient"] > 0, "gradient"]
    if len(positive):
        axes.set_ylim(float(positive.quantile(0.01)) / 2, float(positive.max()) * 2)
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    name_axes(axes, title="Gradients of channels", across="weight layer", up="|gradient| of each channel's bias")
    label_ends(axes, labels)
    return axes
