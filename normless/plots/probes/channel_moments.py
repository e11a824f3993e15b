"""Moments of channels against depth: at initialization, and along an update."""

from __future__ import annotations

from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import QUIET, SCHEME_INKS, scheme_ink
from normless.plots.tables import require_columns

Moment = Literal["abs_mean", "variance"]
_IN_WORDS = {"abs_mean": "mean of |channel mean|", "variance": "mean of channel variance"}


def channel_moments_against_depth(
    moments: pd.DataFrame, ax: Axes | None = None, *, moment: Moment = "variance"
) -> Axes:
    """Draw a channel moment (logarithmic) against the layer, a line per scheme with the spread over channels.

    The band reaches one standard deviation over channels to either side, cut off at a tenth of the mean, since on
    a logarithmic axis a band that reaches 0 has no end.

    Args:
        moments: a row per scheme and layer: ``scheme``, ``order`` (the number of the layer), ``abs_mean`` or
            ``variance``, and the same name with ``_spread``.
        ax: where to draw; a new figure without it.
        moment: which of the two.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    spread = f"{moment}_spread"
    require_columns(moments, ("scheme", "order", moment, spread), "Channel moments against depth")
    axes = new_axes() if ax is None else style_axes(ax)
    _prepare(axes, moments, moment)
    labels = []
    for scheme, rows in moments.groupby("scheme", sort=False):
        ordered, ink = rows.sort_values("order"), scheme_ink(str(scheme))
        order, mean = ordered["order"].to_numpy(float), ordered[moment].to_numpy(float)
        width = ordered[spread].to_numpy(float)
        low = (mean - width).clip(min=mean / 10)
        axes.fill_between(order, low, mean + width, color=ink.light, alpha=0.18, linewidth=0, zorder=2)
        axes.plot(order, mean, color=ink.light, linewidth=1.8, zorder=3, label=str(scheme))
        labels.append(EndLabel(str(scheme).partition("(")[0], order[-1], mean[-1], ink.light))
    name_axes(axes, title="Channels at initialization", across="layer", up=_IN_WORDS[moment])
    label_ends(axes, labels)
    return axes


def moments_along_update(moments: pd.DataFrame, ax: Axes | None = None, *, moment: Moment = "variance") -> Axes:
    """Draw a channel moment (logarithmic) against the layer at points along an update, from light to dark.

    Args:
        moments: of ``moments_along``: ``point``, ``order`` and ``abs_mean`` or ``variance``.
        ax: where to draw; a new figure without it.
        moment: which of the two.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(moments, ("point", "order", moment), "Moments along an update")
    axes = new_axes() if ax is None else style_axes(ax)
    _prepare(axes, moments, moment)
    points = sorted(moments["point"].unique())
    labels = []
    for index, point in enumerate(points):
        ordered = moments[moments["point"] == point].sort_values("order")
        order, values = ordered["order"].to_numpy(float), ordered[moment].to_numpy(float)
        colour = _between(QUIET.light, SCHEME_INKS["none"].light, index / max(len(points) - 1, 1))
        axes.plot(order, values, color=colour, linewidth=1.6, zorder=3, label=f"{point:g}")
        labels.append(EndLabel(f"{point:g}", order[-1], values[-1], colour))
    name_axes(axes, title="Along the update", across="layer", up=f"{_IN_WORDS[moment]}, by part of the update made")
    label_ends(axes, labels)
    return axes


def _prepare(axes: Axes, moments: pd.DataFrame, moment: str) -> None:
    values = moments[moment].to_numpy(float)
    drawable = values[(values > 0) & (values < float("inf"))]
    axes.set_yscale("log")
    axes.set_xlim(0, float(moments["order"].max()) * 1.02)
    axes.set_ylim(drawable.min(initial=1.0) / 3, drawable.max(initial=1.0) * 3)
    axes.yaxis.set_major_locator(LogLocator(10, numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())


def _between(first: str, second: str, share: float) -> str:
    """The colour a share of the way from one to another."""
    pairs = zip(to_rgb(first), to_rgb(second), strict=True)
    red, green, blue = (start * (1 - share) + end * share for start, end in pairs)
    return to_hex((red, green, blue))
