"""How few channels make most of a layer's output."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET, scheme_ink
from normless.plots.tables import require_columns

COLUMNS = ("scheme", "layer", "mean", "share")


def contributions_by_channel_mean(channels: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw what share of a layer's output the channels with the largest means contribute, a line per layer.

    Channels are taken from the largest |mean| on. On the dotted diagonal all contribute alike; the further a line
    bends away from it, the more the channels with large means dominate.

    Args:
        channels: a row per scheme, layer and in-channel: ``scheme``, ``layer``, ``mean`` (of the layer's input) and
            ``share`` (of the sum of contributions, 0..1).
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(channels, COLUMNS, "Contributions by channel mean")
    axes = new_axes() if ax is None else style_axes(ax)
    named: set[str] = set()
    for (scheme, _), rows in channels.groupby(["scheme", "layer"], sort=False):
        by_mean = rows.iloc[np.argsort(-rows["mean"].abs().to_numpy(float), kind="stable")]
        running = np.concatenate([[0.0], by_mean["share"].to_numpy(float).cumsum()])
        name, ink = str(scheme), scheme_ink(str(scheme))
        label = "_nolegend_" if name in named else name
        axes.plot(np.linspace(0, 1, len(running)), running, color=ink.light, linewidth=1.3, alpha=0.8, label=label)
        named.add(name)
    axes.plot([0, 1], [0, 1], color=QUIET.light, linewidth=1, linestyle=":", label="all alike")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="lower right", frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor="linecolor")
    name_axes(
        axes, title="Do few channels dominate?", across="in-channels, largest mean first", up="share of the output"
    )
    return axes
