"""Lines by series, and measured points on the line of their prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normless_lab.plots._frame import (
    Numbers,
    bar_lengths,
    begin,
    columns_of,
    drawable,
    finish,
    series_column,
    series_of,
)
from normless_lab.plots._frames import Style, require_columns, require_unique
from normless_lab.plots._palette import PAPER, QUIET, Ink, series_ink

# Lines of no more points than this have markers.
_MARKED = 12
_DASHES: tuple[Any, ...] = ("solid", (0, (3, 2)), (0, (1, 1.5)))


def lines(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    y: str | Sequence[str],
    by: str | None = None,
    **style: Unpack[Style],
) -> Axes:
    """Draw y against x, a named line per series through the mean of the rows with the same x.

    A y that is not finite, or not above 0 on a logarithmic axis, leaves a gap.

    Args:
        y: the column up. Of several, the second and third are dashed and dotted, and so on.
        by: the column of the series' names.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    by = series_column(table, by)
    columns, ends = columns_of(y), columns_of(style.get("error"))
    each, band, hollow = style.get("each"), style.get("band"), style.get("hollow")
    summary, named = style.get("summary", "mean"), style.get("named")
    others = [by, each, hollow, *ends, None if band == "std" else band]
    require_columns(table, [x, *columns, *others], style.get("title", "A plot of lines"))
    axes, handles = begin(ax, style, table[columns]), dict[str, Line2D]()
    for name, rows, ink in series_of(table, by, style):
        single = [part.sort_values(x) for _, part in rows.groupby(each, sort=False)] if each else []
        ordered = _summarized(rows if summary or not each else single[-1], x, summary)
        for column, dashes in zip(columns, cycle(_DASHES), strict=False):
            line = _Line(axes, x, column, ink, "y" in style.get("log", ""))
            label = name if len(columns) == 1 else f"{name}, {column.replace('_', ' ')}"
            drawn = line.draw_each(single, None if summary else label)
            if band:
                line.fill(ordered, rows.groupby(x)[column].std() if band == "std" else ordered[band])
            if summary or not each:
                drawn = line.draw(ordered, label, linewidth=1.8, linestyle=dashes)
            if ends:
                line.draw_bars(ordered, ends, style)
            if column == columns[0]:
                if hollow:
                    marked = _summarized(rows[rows[hollow].astype(bool)], x, summary)
                    line.draw_hollow(marked, f"{name}, not trained")
                known = line.values(ordered)[~np.isnan(line.values(ordered))]
                if drawn is not None and len(known):
                    handles[named(name, float(known[-1])) if named else name] = drawn
    return finish(axes, style, handles, table=table, x=x, y=columns[0])


def _summarized(rows: pd.DataFrame, x: str, summary: str | None) -> pd.DataFrame:
    """Return one row per x, in order; all rows without a summary."""
    if summary is None:
        return rows.sort_values(x, kind="stable")
    table: pd.DataFrame = rows.groupby(x).agg(summary, numeric_only=True).reset_index()
    return table


@dataclass(frozen=True)
class _Line:
    """A column of a series, drawn on axes."""

    axes: Axes
    x: str
    column: str
    ink: Ink
    log: bool

    def values(self, rows: pd.DataFrame) -> Numbers:
        return drawable(rows[self.column], log=self.log)

    def draw(self, rows: pd.DataFrame, label: str, **changes: Any) -> Line2D:
        marker = self.ink.marker if len(rows) <= _MARKED else "none"
        style: dict[str, Any] = {
            "marker": marker,
            "markersize": 5,
            "color": self.ink.light,
            "alpha": 1.0,
            "zorder": 3,
        }
        return self.axes.plot(rows[self.x], self.values(rows), label=label, **style | changes)[0]

    def draw_each(self, single: Sequence[pd.DataFrame], label: str | None) -> Line2D | None:
        """Draw single curves, which are thin unless they have their own labels; return the last of them."""
        drawn = None
        for number, rows in enumerate(single):
            if label is None:
                drawn = self.draw(rows, "_run", linewidth=0.7, alpha=0.5, marker="none")
            else:
                drawn = self.draw(rows, "_same" if number else label, linewidth=1.2)
        return drawn

    def fill(self, ordered: pd.DataFrame, widths: pd.Series) -> None:
        """Fill a band around the line; on a logarithmic axis, which excludes 0, it ends at a tenth of the line."""
        middle, width = self.values(ordered), np.nan_to_num(widths.to_numpy(float))
        low = np.maximum(middle - width, middle / 10) if self.log else middle - width
        style: dict[str, Any] = {"color": self.ink.light, "alpha": 0.17, "linewidth": 0, "zorder": 2}
        self.axes.fill_between(ordered[self.x], low, middle + width, **style)

    def draw_bars(self, ordered: pd.DataFrame, ends: Sequence[str], frame: Style) -> None:
        values = self.values(ordered)
        bars = bar_lengths(values, [ordered[end].to_numpy(float) for end in ends], frame)
        style: dict[str, Any] = {"fmt": "none", "ecolor": self.ink.light, "elinewidth": 1, "capsize": 2.5}
        self.axes.errorbar(ordered[self.x].to_numpy(float), values, yerr=bars, zorder=2.5, **style)

    def draw_hollow(self, marked: pd.DataFrame, label: str) -> None:
        style: dict[str, Any] = {"marker": self.ink.marker, "markersize": 5.5, "markeredgewidth": 1.4, "zorder": 4}
        style |= {"markerfacecolor": PAPER.light, "markeredgecolor": self.ink.light, "linestyle": "none"}
        self.axes.plot(marked[self.x], marked[self.column], label=label, **style)


# More points than this would run together.
_MARKERS = 24


def measured_on_predicted(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    measured: str | Mapping[str, str],
    by: str | None = None,
    **style: Unpack[Style],
) -> Axes:
    """Draw measured values as hollow points and predictions as lines, with a colour per series.

    Values that cannot be drawn leave a gap.

    Args:
        measured: the column up; of several, a mapping from each to its name. One without any number is left out.
        by: the column of the series' names.

    Raises:
        ValueError: a column is missing, the table is empty, or a series has an x twice.
    """
    by = series_column(table, by) if isinstance(measured, str) else by
    law, law_name = style.get("law"), style.get("law_name", "")
    error = next(iter(columns_of(style.get("error"))), None)
    joined, apart, named = style.get("joined", False), style.get("apart", 0.0), style.get("named", str)
    names = {measured: ""} if isinstance(measured, str) else dict(measured)
    theory = {column: style.get("predicted", f"predicted_{column}") for column in names}
    require_columns(table, [x, *names, *theory.values(), by, law, error], style.get("title", "A plot of predictions"))
    require_unique(table, [x] if by is None else [x, by], "network")
    axes, handles, log = begin(ax, style, table[list(names)]), dict[str, Line2D](), style.get("log", "")
    if joined:
        top = float(table[list(names)].where(np.isfinite).max().max())
        style.setdefault("y_limits", (0, 1.1 * top) if "y" not in log else (None, 2 * top))
    present = [column for column in names if len(names) == 1 or table[column].notna().any()]
    series = series_of(table, by, style)
    for number, (name, rows, own) in enumerate(series):
        ordered = rows.sort_values(x)
        shift = apart * (number - (len(series) - 1) / 2)
        for place, column in enumerate(present):
            ink = own if len(names) == 1 else series_ink(place)
            label = ", ".join(filter(None, (name, names[column])))
            values = ordered[[x, column, theory[column]]].set_axis(["x", "measured", "predicted"], axis=1)
            bars = ordered[error].fillna(0.0) if error else None
            handles[named(label)] = _draw_series(
                axes, values, bars, ink, f"{label}, " if label else "", log, joined, shift
            )
        if law:
            heights, colour = drawable(ordered[law], log="y" in log), QUIET.light if law_name else own.light
            dots: dict[str, Any] = {"color": colour, "linestyle": ":", "linewidth": 1.2, "zorder": 2}
            drawn = axes.plot(ordered[x], heights, label=law_name or f"{name}, law", **dots)[0]
            handles |= {law_name: drawn} if law_name and not np.isnan(heights).all() else {}
    return finish(axes, style, handles, table=table, x=x, y=measured if isinstance(measured, str) else "")


def _draw_series(
    axes: Axes, rows: pd.DataFrame, bars: pd.Series | None, ink: Ink, label: str, log: str, joined: bool, shift: float
) -> Line2D:
    """Draw the line, the points and the bars of a series; return the line of the points."""
    across, measured = rows["x"].to_numpy(float), drawable(rows["measured"], log="y" in log)
    fine, theory = across, rows["predicted"]
    if joined:
        # The prediction is straight, which a logarithmic axis shows only with points in between.
        fine = np.union1d(across, (np.geomspace if "x" in log else np.linspace)(across[0], across[-1], 1000))
        theory = pd.Series(np.interp(fine, across, theory.to_numpy(float)))
    line: dict[str, Any] = {"linestyle": (0, (4, 3)) if joined else "solid", "linewidth": 1.5, "zorder": 2}
    axes.plot(fine, drawable(theory, log="y" in log), color=ink.light, label=f"{label}predicted", **line)
    points: dict[str, Any] = {"linestyle": "solid" if joined else "none", "linewidth": 1.8, "zorder": 4}
    points |= {"marker": ink.marker, "markersize": 4.5, "markeredgewidth": 1.1}
    points |= {"markerfacecolor": ink.light if joined else "none", "markevery": _evenly(across, log="x" in log)}
    marks = axes.plot(across + shift, measured, color=ink.light, label=f"{label}measured", **points)[0]
    if bars is not None:
        axes.errorbar(across + shift, rows["measured"], bars, fmt="none", ecolor=ink.light, capsize=3, zorder=3)
    return marks


def _evenly(across: Numbers, *, log: bool) -> int | list[int]:
    """The points that get a marker: all of a few, else evenly spaced on the axis."""
    if len(across) <= _MARKERS or not log:
        return -(-len(across) // _MARKERS)
    places = np.geomspace(across[0], across[-1], _MARKERS)
    return sorted({int(np.abs(across - place).argmin()) for place in places})
