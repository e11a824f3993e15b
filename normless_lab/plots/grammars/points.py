"""Points with their median, and points of named rows."""

from __future__ import annotations

import math
from textwrap import fill
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from pandas.api.types import is_numeric_dtype

from normless_lab.plots.axes import SMALL_FONT_SIZE
from normless_lab.plots.frames import PointStyle, require_columns
from normless_lab.plots.grammars.frame import (
    bar_lengths,
    begin,
    columns_of,
    drawable,
    finish,
    series_column,
    series_of,
)
from normless_lab.plots.palette import GRID, PAPER, QUIET, Ink, inks_of

# More points than this are dots; so many of a cloud are drawn at full strength.
_MARKERS, _FULL = 60, 1000
# Letters of a row's name in one line.
_LETTERS = 46


def points(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    y: str,
    by: str | None = None,
    **style: Unpack[PointStyle],
) -> Axes:
    """Draw a point per row of the table: y against x, or x of each name from top to bottom if y is text.

    Args:
        table: a tidy table. Values that are not finite, or not above 0 on a logarithmic axis, are left out.
        x: the column across.
        y: the column up, or the names of the rows.
        by: the column of the series' names; ``scheme`` by default, or the names of named rows.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    numeric = y in table and is_numeric_dtype(table[y])
    by = series_column(table, by) if numeric else by
    ends, summary, hollow = columns_of(style.get("error")), style.get("summary"), style.get("hollow")
    beside, groups = style.get("beside"), style.get("groups")
    require_columns(table, [x, y, by, hollow, *ends, beside, groups], style.get("title", "A plot of points"))
    if not numeric:
        style.setdefault("size", _rows_size(table, y, groups))
        axes = begin(ax, style)
        _draw_rows(axes, table, x, y, by or y, style)
        finish(axes, {**style, "names": "none"}, x=x)  # type: ignore[typeddict-unknown-key]
        return _style_rows(axes, table, y, groups)
    axes, handles = begin(ax, style), dict[str, Line2D]()
    for name, rows, ink in series_of(table, by, style):
        _cloud(axes, rows, x, y, hollow, ink, name, "y" in style.get("log", ""))
        if summary:
            middle = rows.groupby(x)[y].agg(summary).dropna()
            label = f"{name}, {summary}" if name else summary
            handles[name] = axes.plot(middle.index, middle, color=ink.light, linewidth=1.6, zorder=3, label=label)[0]
    for axis, column in (("x", x), ("y", y)):
        if axis in style.get("log", ""):
            style.setdefault(f"{axis}_limits", _decades(table[column]))  # type: ignore[misc]
    return finish(axes, style, handles, table=table, x=x, y=y)


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


def _rows_size(table: pd.DataFrame, y: str, groups: str | None) -> tuple[float, float]:
    """Return the size in inches of a figure with room for the names of its rows."""
    names = [_spoken(name) for name, _ in _rows(table, y, groups)]
    lines = sum(name.count("\n") + 1 for name in names)
    longest = max(len(line) for name in names for line in name.split("\n"))
    return 4.6 + 0.055 * longest, 1.2 + 0.17 * lines + 0.1 * len(names)


def _draw_rows(axes: Axes, table: pd.DataFrame, x: str, y: str, by: str, style: PointStyle) -> None:
    """Draw each row's point, its bar, and its reference mark."""
    hollow, beside, groups = style.get("hollow"), style.get("beside"), style.get("groups")
    marker, ends = style.get("beside_marker", "D"), columns_of(style.get("error"))
    chosen = inks_of({str(name): str(name) for name in table[by].unique()}) | dict(style.get("inks", {}))
    places: dict[str, int] = {}
    for place, (name, row) in enumerate(_rows(table, y, groups)):
        if row is None:
            continue
        # Rows of one name share a line, unless groups repeat them.
        height = place if groups else places.setdefault(name, len(places))
        if beside and math.isfinite(row[beside]):
            mark: dict[str, Any] = {"color": QUIET.light, "markerfacecolor": PAPER.light, "markeredgewidth": 1.4}
            mark |= {"marker": marker, "markersize": 12 if marker == "|" else 6, "linestyle": "none"}
            axes.plot([row[beside]], [height], label="_beside", zorder=2, **mark)
        if math.isfinite(row[x]):
            ink, open_point = chosen[str(row[by])], bool(hollow and row[hollow])
            axes.errorbar(
                [row[x]],
                [height],
                xerr=bar_lengths(np.array([row[x]]), [np.array([row[end]], dtype=float) for end in ends], style),
                color=ink.light,
                marker=ink.marker,
                markersize=6.5,
                markerfacecolor=PAPER.light if open_point else ink.light,
                capsize=3,
                label=f"{name}, hollow" if open_point else name,
                zorder=3,
            )


def _style_rows(axes: Axes, table: pd.DataFrame, y: str, groups: str | None) -> Axes:
    """Set names at the left, those of groups in bold, and a grid of vertical lines."""
    rows = _rows(table, y, groups)
    names = [name for name, _ in rows] if groups else list(dict.fromkeys(name for name, _ in rows))
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID.light, linewidth=0.8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), [_spoken(name) for name in names], fontsize=SMALL_FONT_SIZE)
    if groups:
        for label, (_, row) in zip(axes.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if row is None else "normal")
    return axes


def _rows(table: pd.DataFrame, y: str, groups: str | None) -> list[tuple[str, dict[Any, Any] | None]]:
    """Return the name and the values of each row, and the headings of groups without values."""
    if groups is None:
        return [(str(row[y]), row) for row in table.to_dict("records")]
    return [
        line
        for group, rows in table.groupby(groups, sort=False)
        for line in [(str(group), None), *((str(row[y]), row) for row in rows.to_dict("records"))]
    ]


def _spoken(name: str) -> str:
    return fill(name.replace("_", " "), _LETTERS)
