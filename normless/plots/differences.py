"""What several variants are better or worse than a common one, with the error of the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import GRID, PAPER, QUIET, Ink
from normless.plots.tables import require_columns

# Height in inches of a line, and of what stands above and below them.
_LINE, _AROUND = 0.22, 1.4
# What stands below the axis is broken into lines of so many letters.
_LETTERS = 44


def differences_to_baseline(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    inks: Mapping[str, Ink],
    title: str,
    across: str,
    groups: str | None = None,
) -> Axes:
    """Draw the difference of each variant to the one they are compared with, one below the other; that is the line 0.

    Bars are two standard errors to each side. A hollow marker is a difference whose error is not known.

    Args:
        table: a row per variant: the column `series`, `difference`, and its standard `error` (NaN if unknown). A
            difference that is not finite is left out, its name is not. `published` differences, where the table has
            that column, are drawn as crosses.
        ax: where to draw; a new figure, as high as need be, without it.
        series: the column of the variants' names.
        inks: of each name.
        title: of the figure.
        across: what the differences are, with their unit.
        groups: the column that rows are put together by, such as the network; its labels stand above their lines.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(
        table, (series, "difference", "error", *([groups] if groups else [])), "The figure of differences"
    )
    parts = (
        [("", table)] if groups is None else [(str(name), rows) for name, rows in table.groupby(groups, sort=False)]
    )
    lines = len(table) + (len(parts) if groups else 0)
    axes = new_axes(height=_AROUND + _LINE * lines) if ax is None else style_axes(ax)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID.light, linewidth=0.8)
    axes.axvline(0, color=QUIET.light, linewidth=1, zorder=1, label="baseline")
    names: list[str] = []
    for group, rows in parts:
        if groups:
            names.append(group)
        for row in rows.to_dict("records"):
            _point(axes, len(names), row, inks[str(row[series])], str(row[series]))
            names.append(str(row[series]))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    axes.set_yticklabels([name.replace("_", " ") for name in names])
    if groups:
        for label in axes.get_yticklabels():
            if label.get_text() in {group.replace("_", " ") for group, _ in parts}:
                label.set_fontweight("bold")
    if any(row.get("published") is not None for row in table.to_dict("records")):
        across = f"{across}; crosses: published"
    name_axes(axes, title=title, across="\n".join(wrap(across, _LETTERS)), up="")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.label.set_fontsize(SMALL_FONT_SIZE)
    return axes


def _point(axes: Axes, place: int, row: Mapping[Any, Any], ink: Ink, label: str) -> None:
    difference, error = float(row["difference"]), float(row["error"])
    printed = row.get("published")
    if printed is not None and math.isfinite(float(printed)):
        axes.plot([float(printed)], [place], marker="x", color=QUIET.light, markersize=6, linestyle="none", zorder=2)
    if not math.isfinite(difference):
        return
    known = math.isfinite(error)
    axes.errorbar(
        [difference],
        [place],
        xerr=[2 * error if known else 0.0],
        color=ink.light,
        marker=ink.marker,
        markersize=6.5,
        markerfacecolor=ink.light if known else PAPER.light,
        capsize=3,
        label=label,
        zorder=3,
    )
