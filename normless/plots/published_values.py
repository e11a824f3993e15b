"""Measured numbers of some methods beside the ones a paper prints."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import PAPER, QUIET
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

_LETTERS = 30


def beside_published(table: pd.DataFrame, ax: Axes | None = None, *, title: str, across: str) -> Axes:
    """Draw a number of each of some methods, from top to bottom, beside the printed one.

    A filled point is measured, its bar one sample standard deviation over replicates to either side; a hollow diamond
    is printed in the paper, of the paper's own data and length of training.

    Args:
        table: a row per method: ``name``, ``measured`` and ``deviation`` (NaN of a single run), and ``published``
            (NaN where nothing is printed).
        ax: where to draw; a new figure without it.
        title: of the figure.
        across: what the numbers are, with their unit.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(table, ("name", "measured", "deviation", "published"), "The figure beside published numbers")
    axes = new_axes(width=5.6, height=1.3 + 0.36 * len(table)) if ax is None else style_axes(ax)
    places = list(range(len(table)))
    ink = series_ink(0)
    axes.errorbar(
        table["measured"].astype(float),
        places,
        xerr=table["deviation"].astype(float).fillna(0.0),
        linestyle="none",
        marker=ink.marker,
        markersize=6,
        color=ink.light,
        capsize=2.5,
        label="measured",
        zorder=3,
    )
    axes.plot(
        table["published"].astype(float),
        places,
        linestyle="none",
        marker="D",
        markersize=6,
        markerfacecolor=PAPER.light,
        markeredgecolor=QUIET.light,
        markeredgewidth=1.4,
        label="published",
        zorder=4,
    )
    axes.set_ylim(len(table) - 0.5, -0.5)
    names = [textwrap.fill(str(name).replace("_", " "), _LETTERS) for name in table["name"]]
    axes.set_yticks(places, names, fontsize=SMALL_FONT_SIZE)
    name_axes(axes, title=title, across=f"{across} (filled: measured; hollow: published)", up="")
    return axes
