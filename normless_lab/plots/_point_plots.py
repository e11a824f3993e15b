"""Points with their median or of named rows, histograms, and matrices in colours."""

from __future__ import annotations

import math
from textwrap import fill
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from pandas.api.types import is_numeric_dtype

from normless_lab.plots._frame import (
    SMALL_FONT_SIZE,
    Numbers,
    bar_lengths,
    begin,
    columns_of,
    drawable,
    finish,
    series_column,
    series_of,
)
from normless_lab.plots._frames import (
    NamePlaces,
    Style,
    require_columns,
    require_unique,
)
from normless_lab.plots._palette import GRID, PAPER, QUIET, SCHEME_INKS, TEXT, Ink, inks_of

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
    **style: Unpack[Style],
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
        finish(axes, {**style, "names": "none"}, x=x)
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


def _draw_rows(axes: Axes, table: pd.DataFrame, x: str, y: str, by: str, style: Style) -> None:
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


def histogram(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    by: str | None = None,
    **style: Unpack[Style],
) -> Axes:
    """Draw a histogram per series as a filled outline, or as bars; the table has a row per value, or per bin.

    Args:
        x: the column of values to count, or the places of bars; without it the table has bins ``low`` to ``high``.
        by: the column of the series' names.

    Raises:
        ValueError: a column is missing, a table is empty, or `bins` is below 1.
    """
    by, each, law = series_column(table, by), style.get("each"), style.get("law")
    bins, height, bars = style.get("bins", 50), style.get("height", "density"), style.get("bars", False)
    needed = ([x] if x else ["low", "high"]) + ([height] if bars or not x else [])
    require_columns(table, [*needed, by, each], style.get("title", "A histogram"))
    if bins < 1:
        raise ValueError(f"Expected at least one bin, got {bins}.")
    axes, drawn = begin(ax, style), []
    low, high = style.get("limits") or (0.0, 1.02 * float(table[x].max()) if x else 1.0)
    for name, rows, ink in series_of(table, by, style):
        single = [part for _, part in rows.groupby(each, sort=False)] if each else [rows]
        for number, part in enumerate(single):
            label = "_same" if number or not name else name
            if bars and x:
                heights = part[height].to_numpy(float)
                axes.bar(part[x], heights, width=0.7, color=ink.light, zorder=3, label=label)
            else:
                heights, edges = _counted(
                    part, x, height, np.linspace(low, high, bins + 1), style.get("share", False)
                )
                fill: dict[str, Any] = {"fill": True, "alpha": 0.2 / len(single), "linewidth": 0, "zorder": 2}
                outline: dict[str, Any] = {"alpha": 1.0 if len(single) == 1 else 0.6, "linewidth": 1.2, "zorder": 3}
                axes.stairs(heights, edges, color=ink.light, **fill)
                axes.stairs(heights, edges, color=ink.light, label=label, **outline)
            drawn.append(heights)
    if law is not None:
        _draw_law(axes, law, by, style.get("law_name", "limit"), style)
    _limit(axes, np.concatenate(drawn), style)
    names: NamePlaces = "none" if bars or (by is None and law is None) else "legend"
    frame: Style = {"names": names, **style}
    return finish(axes, frame, table=table if bars else None, x=x or "value", y=height)


def _counted(rows: pd.DataFrame, x: str | None, height: str, edges: Numbers, share: bool) -> tuple[Numbers, Numbers]:
    """Heights and edges of the bins of a table, or of its values counted between the given edges."""
    if x is None:
        ordered = rows.sort_values("low")
        ends = np.append(ordered["low"].to_numpy(float), ordered["high"].to_numpy(float)[-1:])
        return ordered[height].to_numpy(float), ends
    values = np.clip(rows[x].to_numpy(float), edges[0], edges[-1])
    counts, _ = np.histogram(values, edges, density=not share)
    return counts / max(len(values), 1) if share else counts, edges


def _draw_law(axes: Axes, law: pd.DataFrame, by: str | None, name: str, frame: Style) -> None:
    require_columns(law, ["x", "density", by], name)
    for number, (_, rows, _) in enumerate(series_of(law, by, frame)):
        style: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.2, "color": TEXT.light, "zorder": 4}
        axes.plot(rows["x"], rows["density"], label=f"_{name}" if number else name, **style)


def _limit(axes: Axes, heights: Numbers, frame: Style) -> None:
    """From 0; a logarithmic axis from a half, of several decades a tenth, of the lowest bar."""
    positive = heights[heights > 0]
    if "y" not in frame.get("log", ""):
        axes.set_ylim(bottom=0 if not (heights < 0).any() else None)
    elif len(positive):
        axes.set_ylim(positive.min() / 3, positive.max() * 2)


# More cells than this are an image: as shapes they would be most of a page.
_MOST_CELLS = 400


def heat_map(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    y: str,
    value: str,
    **style: Unpack[Style],
) -> Axes:
    """Draw the column of values at each x and y in colours, with a scale beside them; y goes down.

    Raises:
        ValueError: a column is missing, the table is empty, or a cell is there twice.
    """
    require_columns(table, [x, y, value], style.get("title", "A heat map"))
    require_unique(table, [x, y], "matrix")
    axes = begin(ax, style)
    matrix = table.pivot(index=y, columns=x, values=value)
    limit = max(float(np.nanmax(np.abs(matrix.to_numpy(float)))), 1e-12)
    signed, dark = style.get("signed", False), style.get("ink", SCHEME_INKS["none"])
    colours = [SCHEME_INKS["skipinit"], PAPER, SCHEME_INKS["none"]] if signed else [PAPER, dark, TEXT]
    mesh = axes.pcolormesh(
        matrix.columns.to_numpy(),
        matrix.index.to_numpy(),
        matrix.to_numpy(float),
        cmap=LinearSegmentedColormap.from_list("values", [colour.light for colour in colours]),
        vmin=-limit if signed else 0,
        vmax=limit,
        shading="nearest",
        zorder=2,
        rasterized=matrix.size > _MOST_CELLS,
    )
    axes.grid(visible=False)
    axes.invert_yaxis()
    figure = axes.get_figure(root=True)
    assert figure is not None
    scale = figure.colorbar(mesh, ax=axes, fraction=0.06, pad=0.03)
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    scale.set_label(style.get("unit", ""), fontsize=SMALL_FONT_SIZE, color=QUIET.light)
    frame: Style = {"x_ticks": "integers", "y_ticks": "integers", **style, "names": "none"}
    return finish(axes, frame, x=x, y=y)
