"""What networks do at initialization against their depth: function updates, gradient correlation, the share of L2."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, PercentFormatter, ScalarFormatter

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import scheme_ink
from normless.plots.tables import require_columns


def function_update_against_depth(updates: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how far an SGD step moves the network's function, over its rate, against depth; both logarithmic.

    Fixup's design goal is a level line. Several rows of one scheme and depth are drawn by their median; one that is
    zero or not finite leaves a gap.

    Args:
        updates: a row per scheme, depth and draw: ``scheme``, ``depth`` (blocks), ``update_per_rate`` (‖∆f‖/η).
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(updates, ("scheme", "depth", "update_per_rate"), "Function update against depth")
    size = updates["update_per_rate"]
    updates = updates.assign(update_per_rate=size.where((size > 0) & (size < float("inf"))))
    axes = _draw(updates, "update_per_rate", ax)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    return _finished(
        axes, updates, "update_per_rate", "One SGD step at initialization", "change of the logits / rate"
    )


def gradient_correlation_against_depth(correlations: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the mean cosine between the gradients of different examples against depth (logarithmic).

    Args:
        correlations: a row per scheme, depth and draw: ``scheme``, ``depth`` (blocks), ``cosine``; medians are drawn.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(correlations, ("scheme", "depth", "cosine"), "Gradient correlation against depth")
    axes = _draw(correlations, "cosine", ax)
    low = min(0.0, float(correlations["cosine"].min()))
    axes.set_ylim(1.05 * low, 1.05 * max(float(correlations["cosine"].max()), 0.1))
    return _finished(axes, correlations, "cosine", "Shattered gradients", "cosine between examples' gradients")


def l2_share_against_depth(shares: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the share of the L2 term in the training objective at initialization against depth (logarithmic).

    Args:
        shares: a row per scheme, depth and draw: ``scheme``, ``depth``, ``share`` (0..1); medians are drawn.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(shares, ("scheme", "depth", "share"), "Share of L2 against depth")
    axes = _draw(shares, "share", ax)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    return _finished(axes, shares, "share", "The loss at initialization", "share of the L2 term")


def _medians(table: pd.DataFrame, column: str) -> dict[str, pd.Series]:
    """For each scheme the median of a column by depth."""
    groups = table.groupby("scheme", sort=False)
    return {str(scheme): rows.groupby("depth")[column].median() for scheme, rows in groups}


def _draw(table: pd.DataFrame, column: str, ax: Axes | None) -> Axes:
    """One line with markers per scheme."""
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log")
    for scheme, medians in _medians(table, column).items():
        ink = scheme_ink(scheme)
        axes.plot(
            medians.index, medians, color=ink.light, marker=ink.marker, markersize=5, linewidth=1.8, label=scheme
        )
    return axes


def _finished(axes: Axes, table: pd.DataFrame, column: str, title: str, up: str) -> Axes:
    """Ticks at the depths, and the schemes' names at the ends of their lines."""
    depths = sorted(int(depth) for depth in table["depth"].unique())
    axes.set_xlim(depths[0] / 1.15, depths[-1] * 1.15)
    axes.xaxis.set_major_locator(FixedLocator(depths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    name_axes(axes, title=title, across="depth", up=up)
    labels = []
    for scheme, medians in _medians(table, column).items():
        known = medians.dropna()
        if len(known):
            ends = float(known.index[-1]), float(known.iloc[-1])
            labels.append(EndLabel(scheme, *ends, scheme_ink(scheme).light))
    # Names are placed by limits that no longer move.
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, labels)
    return axes
