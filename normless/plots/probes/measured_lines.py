"""Measured points on the line of their prediction, as figures against the block draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import Ink

# More points than this would run together.
_MARKERS = 24


def draw_measured(
    axes: Axes, across: pd.Series, measured: pd.Series, predicted: pd.Series, ink: Ink, label: str
) -> EndLabel:
    """A line for what is predicted and hollow points for what was measured; returns the name for their end.

    Args:
        axes: where to draw.
        across, measured, predicted: of one length; NaN leaves a gap.
        ink: colour and marker.
        label: of both, as ``NAME, predicted`` and ``NAME, measured``.
    """
    axes.plot(across, predicted, color=ink.light, linewidth=1.6, zorder=3, label=f"{label}, predicted")
    every = max(1, -(-len(across) // _MARKERS))
    axes.plot(
        across,
        measured,
        linestyle="none",
        marker=ink.marker,
        markersize=4.5,
        markerfacecolor="none",
        markeredgecolor=ink.light,
        markeredgewidth=1.1,
        markevery=every,
        zorder=4,
        label=f"{label}, measured",
    )
    known = measured.to_numpy(float)
    at = np.flatnonzero(np.isfinite(known))
    last = int(at[-1]) if len(at) else 0
    height = float(known[last]) if len(at) else 0.0
    return EndLabel(label, float(across.to_numpy(float)[last]), height, ink.light)


def draw_against_block(axes: Axes, table: pd.DataFrame, columns: Mapping[str, str], inks: Sequence[Ink]) -> None:
    """Several columns of a table with a row per block, on the lines of their ``predicted_`` columns, and their names.

    Args:
        axes: where to draw.
        table: with ``block``, the columns and their predictions.
        columns: the name to write for every column.
        inks: one for every column.
    """
    ordered = table.sort_values("block")
    labels = [
        draw_measured(axes, ordered["block"], ordered[column], ordered[f"predicted_{column}"], ink, name)
        for (column, name), ink in zip(columns.items(), inks, strict=True)
    ]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_ends(axes, labels)
