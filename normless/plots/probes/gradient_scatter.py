"""A layer's parameters as points: |Σd| against Σ|d|, and the gradient against the mean of the channel it reads."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET, scheme_ink
from normless.plots.tables import require_columns

SUM_COLUMNS = ("scheme", "abs_sum", "sum_abs")
MEAN_COLUMNS = ("scheme", "abs_sum", "channel_mean")

# What is smaller than the largest value by this factor is left out of a picture.
_DECADES = 6


def sums_of_parameters(parameters: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw |Σd| against Σ|d|, a point per parameter, both logarithmic; on the diagonal all summands agree in sign.

    Args:
        parameters: a row per scheme and parameter of a layer: ``scheme``, ``sum_abs`` (Σ|d|), ``abs_sum`` (|Σd|), in
            nats per unit of the weight.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(parameters, SUM_COLUMNS, "The scatter of gradient sums")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_points(axes, parameters, "sum_abs")
    high = float(parameters["sum_abs"].max()) * 2
    least = parameters.loc[parameters["sum_abs"] > 0, "sum_abs"].min()
    low = max(float(least) / 2, high / 10**_DECADES) if np.isfinite(least) else high / 10**_DECADES
    axes.plot([low, high], [low, high], color=QUIET.light, linewidth=1, linestyle=":", label="all of one sign")
    axes.set_xlim(low, high)
    axes.set_ylim(_floor(parameters["abs_sum"], low), high)
    axes.xaxis.set_major_locator(LogLocator(10))
    axes.xaxis.set_minor_locator(NullLocator())
    _finish(axes)
    name_axes(axes, title="Gradient of each parameter", across="Σ|d|", up="|Σd|")
    return axes


def gradient_against_channel_mean(parameters: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw |gradient| against the mean of the in-channel before the activation, a point per parameter.

    Means are drawn in standard deviations over the parameters of each scheme, so that clouds can be compared.

    Args:
        parameters: a row per scheme and parameter of a layer: ``scheme``, ``channel_mean`` (in the activations' unit)
            and ``abs_sum`` (|gradient|, nats per unit of the weight).
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(parameters, MEAN_COLUMNS, "The gradient against channel means")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    # Networks with and without norms have means of other orders of magnitude.
    spread = parameters.groupby("scheme")["channel_mean"].transform("std", ddof=0).replace(0.0, 1.0)
    _draw_points(axes, parameters.assign(channel_mean=parameters["channel_mean"] / spread), "channel_mean")
    axes.set_ylim(_floor(parameters["abs_sum"], 0.0), float(parameters["abs_sum"].max()) * 2 or 1.0)
    axes.xaxis.set_minor_locator(NullLocator())
    _finish(axes)
    name_axes(
        axes,
        title="Channel mean and gradient",
        across="mean of the in-channel, in standard deviations",
        up="|gradient|",
    )
    return axes


def _draw_points(axes: Axes, parameters: pd.DataFrame, across: str) -> None:
    """A cloud per scheme, fainter the more points it has, and its name in its colour."""
    for scheme, rows in parameters.groupby("scheme", sort=False):
        seen = rows[rows["abs_sum"] > 0]
        axes.plot(
            seen[across],
            seen["abs_sum"],
            linestyle="none",
            marker=".",
            markersize=2.5,
            markeredgewidth=0,
            alpha=float(np.clip(1000 / max(len(seen), 1), 0.15, 0.7)),
            color=scheme_ink(str(scheme)).light,
            label=str(scheme),
            rasterized=True,
        )


def _floor(values: pd.Series, low: float) -> float:
    """Where a logarithmic axis starts: below all but the smallest 0.5%, and not lower than `_DECADES`."""
    positive = values[values > 0]
    if positive.empty:
        return low or 0.1
    most = float(positive.max())
    return max(float(positive.quantile(0.005)) / 2, most / float(10**_DECADES))


def _finish(axes: Axes) -> None:
    """Ticks, and a legend at the right that is as bright as the points are not."""
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    legend = axes.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor="linecolor"
    )
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
            if isinstance(handle, Line2D):
                handle.set_markersize(8)
