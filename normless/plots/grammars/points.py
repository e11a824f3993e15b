"""Points with their median, and points of named rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas.api.types import is_numeric_dtype

from normless.plots.grammars.frame import begin, columns_of, drawable, finish, series_column, series_of
from normless.plots.grammars.named_rows import draw_rows, rows_size, style_rows
from normless.plots.labels import Curve
from normless.plots.palette import PAPER, Ink
from normless.plots.plot import Frame, require_columns

# More points than this are dots; so many of a cloud are drawn at full strength.
_MARKERS, _FULL = 60, 1000


def points(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    y: str,
    by: str | None = None,
    summary: str | None = None,
    hollow: str | None = None,
    error: str | tuple[str, str] | None = None,
    beside: str | None = None,
    beside_marker: str = "D",
    groups: str | None = None,
    inks: Mapping[str, Ink] | None = None,
    **frame: Unpack[Frame],
) -> Axes:
    """Draw a point per row of the table: y against x, or x of each name from top to bottom where y is text.

    Args:
        table: a tidy table. What is not finite, or not above 0 on a logarithmic axis, is left out.
        x: the column across.
        y: the column up, or the names of the rows.
        by: the column of the series' names; ``scheme`` by default, or the names of named rows.
        summary: ``"median"`` or ``"mean"`` draws a line through that of the points with the same x.
        hollow: a column of booleans; points that have it are hollow.
        error: bars of named rows: the column of their half width, or the columns of their ends.
        beside: a column of reference numbers of named rows, such as published ones, drawn as hollow marks.
        beside_marker: of those.
        groups: a column by which named rows are put together; its labels stand above their rows.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    numeric = y in table and is_numeric_dtype(table[y])
    by = series_column(table, by) if numeric else by
    ends = columns_of(error)
    require_columns(table, [x, y, by, hollow, *ends, beside, groups], frame.get("title", "A plot of points"))
    if not numeric:
        frame.setdefault("size", rows_size(table, y, groups))
        axes = begin(ax, frame)
        draw_rows(axes, table, (x, y, by or y), (hollow, beside, beside_marker, groups), ends, inks)
        finish(axes, {**frame, "names": "none"}, x=x)
        return style_rows(axes, table, y, groups)
    axes, curves = begin(ax, frame), list[Curve]()
    for name, rows, ink in series_of(table, by, frame, inks):
        _cloud(axes, rows, x, y, hollow, ink, name, "y" in frame.get("log", ""))
        if summary:
            middle = rows.groupby(x)[y].agg(summary).dropna()
            label = f"{name}, {summary}" if name else summary
            axes.plot(middle.index, middle, color=ink.light, linewidth=1.6, zorder=3, label=label)
            curves.append(Curve(name, middle.index.to_numpy(float), middle.to_numpy(float), ink.light))
    for axis, column in (("x", x), ("y", y)):
        if axis in frame.get("log", ""):
            frame.setdefault(f"{axis}_limits", _decades(table[column]))  # type: ignore[misc]
    return finish(axes, frame, curves, table=table, x=x, y=y)


def _cloud(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, hollow: str | None, ink: Ink, name: str, log: bool
) -> None:
    """The points of a series: markers of a few, dots of many, fainter the more there are."""
    many = len(rows) > _MARKERS
    style: dict[str, Any] = {"marker": ink.marker, "markersize": 5.5}
    if many:
        alpha = float(np.clip(_FULL / len(rows), 0.15, 0.7))
        style = {"marker": ".", "markersize": 2.5, "markeredgewidth": 0, "alpha": alpha, "rasterized": True}
    marked = rows[hollow].astype(bool) if hollow else pd.Series(False, index=rows.index)
    for chosen, face, suffix in ((~marked, ink.light, ""), (marked, PAPER.light, ", hollow")):
        if hollow or not suffix:
            values = drawable(rows[y][chosen], log=log)
            style |= {"markerfacecolor": face, "markeredgecolor": ink.light}
            axes.plot(rows[x][chosen], values, linestyle="none", zorder=2.5, label=f"{name}{suffix}", **style)


def _decades(values: pd.Series) -> tuple[float | None, float | None]:
    """A logarithmic axis starts below all but the smallest 0.5 % and spans at most six decades."""
    positive = values[(values > 0) & np.isfinite(values)].astype(float)
    if positive.empty:
        return None, None
    top = float(positive.max())
    return max(float(positive.quantile(0.005)) / 2, top / 1e6), top * 2
