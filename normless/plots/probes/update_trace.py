"""How much every layer's gradient step changes a network's output."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

_WIDE = 30.0


def update_trace_against_block(traces: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the trace of each branch layer's J against the block, one line per position on the branch.

    The axis is logarithmic where the traces span more than a factor of 30, else it starts at 0.

    Args:
        traces: a row per parameter: ``place``, ``block`` (1..L), ``position`` (of the weight layer on its branch,
            0 for what is none), ``trace``; rows off the branches are left out, those of one layer added.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, or there is no weight layer on a branch.
    """
    require_columns(traces, ("place", "block", "position", "trace"), "Update traces against block")
    weights = traces[(traces["place"] == "branch") & (traces["position"] > 0)]
    if weights.empty:
        raise ValueError("Expected rows of weight layers on branches, and there is none; measure a residual network.")
    axes = new_axes() if ax is None else style_axes(ax)
    labels = []
    for index, (position, rows) in enumerate(weights.groupby("position")):
        ink, name = series_ink(index), f"layer {position}"
        sums = rows.groupby("block")["trace"].sum()
        drawn = sums.where(sums > 0)
        axes.plot(drawn.index, drawn, color=ink.light, marker=ink.marker, markersize=4, linewidth=1.2, label=name)
        known = drawn.dropna()
        if len(known):
            labels.append(EndLabel(name, float(known.index[-1]), float(known.iloc[-1]), ink.light))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _scale(axes, weights.groupby(["block", "position"])["trace"].sum())
    name_axes(axes, title="Branches update in sync", across="block", up="trace of J: change of the logits per step")
    # Names are placed by limits that no longer move.
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, labels)
    return axes


def _scale(axes: Axes, traces: pd.Series) -> None:
    """From 0, or logarithmic over what is drawn."""
    drawn = traces[(traces > 0) & (traces < float("inf"))]
    if drawn.empty or drawn.max() <= _WIDE * drawn.min():
        axes.set_ylim(0, 1.05 * drawn.max() if len(drawn) else 1)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
