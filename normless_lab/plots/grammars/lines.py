"""Lines by scheme, or by any other series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normless_lab.plots.frames import Frame, LineStyle, require_columns
from normless_lab.plots.grammars.frame import (
    Numbers,
    bar_lengths,
    begin,
    columns_of,
    drawable,
    finish,
    series_column,
    series_of,
)
from normless_lab.plots.palette import PAPER, Ink

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
    **style: Unpack[LineStyle],
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

    def draw_bars(self, ordered: pd.DataFrame, ends: Sequence[str], frame: Frame) -> None:
        values = self.values(ordered)
        bars = bar_lengths(values, [ordered[end].to_numpy(float) for end in ends], frame)
        style: dict[str, Any] = {"fmt": "none", "ecolor": self.ink.light, "elinewidth": 1, "capsize": 2.5}
        self.axes.errorbar(ordered[self.x].to_numpy(float), values, yerr=bars, zorder=2.5, **style)

    def draw_hollow(self, marked: pd.DataFrame, label: str) -> None:
        style: dict[str, Any] = {"marker": self.ink.marker, "markersize": 5.5, "markeredgewidth": 1.4, "zorder": 4}
        style |= {"markerfacecolor": PAPER.light, "markeredgecolor": self.ink.light, "linestyle": "none"}
        self.axes.plot(marked[self.x], marked[self.column], label=label, **style)
