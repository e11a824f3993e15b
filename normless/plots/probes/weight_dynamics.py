"""Weights and multipliers of residual branches while networks train."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import scheme_ink
from normless.plots.tables import require_columns


def weight_norms_against_step(dynamics: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the mean norm of the branches' weights against the step, one line per scheme.

    Args:
        dynamics: a row per scheme, step and weight: ``scheme``, ``step``, ``place``, ``weight_norm``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, or no weight is on a branch.
    """
    return _draw(dynamics, "weight_norm", ax, "Weights of the branches", "mean norm of a weight")


def multipliers_against_step(dynamics: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the mean multiplier at the branches' ends against the step, one line per scheme that has multipliers.

    Args:
        dynamics: a row per scheme, step and weight: ``scheme``, ``step``, ``place``, ``multiplier``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, or no weight is on a branch.
    """
    return _draw(dynamics, "multiplier", ax, "Multipliers of the branches", "mean |multiplier|")


def _draw(dynamics: pd.DataFrame, column: str, ax: Axes | None, title: str, up: str) -> Axes:
    require_columns(dynamics, ("scheme", "step", "place", column), title)
    branches = dynamics[dynamics["place"] == "branch"]
    if branches.empty:
        raise ValueError("Expected rows of weights on branches, and there is none; record a residual network.")
    axes = new_axes() if ax is None else style_axes(ax)
    labels = []
    for scheme, rows in branches.groupby("scheme", sort=False):
        ink, means = scheme_ink(str(scheme)), rows.groupby("step")[column].mean().dropna()
        if len(means):
            axes.plot(means.index, means, color=ink.light, linewidth=1.8, label=str(scheme))
            labels.append(EndLabel(str(scheme), float(means.index[-1]), float(means.iloc[-1]), ink.light))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    name_axes(axes, title=title, across="step", up=up)
    # Names are placed by limits that no longer move.
    axes.set_ylim(axes.get_ylim())
    label_ends(axes, labels)
    return axes
