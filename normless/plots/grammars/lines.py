"""Lines by scheme, or by any other series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.grammars.frame import bar_lengths, begin, columns_of, drawable, finish, series_column, series_of
from normless.plots.labels import Curve
from normless.plots.palette import PAPER, Ink
from normless.plots.plot import Frame, require_columns

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
    each: str | None = None,
    summary: str | None = "mean",
    band: str | None = None,
    error: str | tuple[str, str] | None = None,
    hollow: str | None = None,
    hollow_name: str = "not trained",
    inks: Mapping[str, Ink] | None = None,
    end_text: Callable[[str, float], str] = lambda name, _: name,
    **frame: Unpack[Frame],
) -> Axes:
    """Draw y against x, a named line per series through the mean of the rows with the same x.

    Args:
        table: a tidy table. A y that is not finite, or not above 0 on a logarithmic axis, leaves a gap.
        x: the column across.
        y: the column up. Of several, the second and third are dashed and dotted.
        each: a column of single curves within a series, such as runs: thin lines, or all there is without `summary`.
        summary: of rows with the same x, as `pandas` names it: ``"mean"``, ``"median"``, ``"sum"``.
        band: the column of a spread that is filled to both sides, or ``"std"`` over the rows with the same x.
        error: bars: the column of their half width, or the columns of their ends.
        hollow: a column of booleans; points that have it are hollow.
        hollow_name: what a hollow point is.
        end_text: the name at the end of a line, from that of the series and the last value.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    by = series_column(table, by)
    columns, ends = columns_of(y), columns_of(error)
    others = [by, each, hollow, *ends, None if band == "std" else band]
    require_columns(table, [x, *columns, *others], frame.get("title", "A plot of lines"))
    axes, log = begin(ax, frame, table[columns]), "y" in frame.get("log", "")
    curves: list[Curve] = []
    for name, rows, ink in series_of(table, by, frame, inks):
        for place, column in enumerate(columns):
            label = name if len(columns) == 1 else f"{name}, {column.replace('_', ' ')}"
            single = [one.sort_values(x) for _, one in rows.groupby(each, sort=False)] if each else []
            for number, one in enumerate(single):
                thin = ("_run", 0.7, 0.5) if summary else ("_same" if number else label, 1.2, 1.0)
                _draw(axes, one, x, column, ink, log, *thin)
            ordered = _summarized(rows if summary or not each else single[-1], x, summary)
            across, values = ordered[x].to_numpy(float), drawable(ordered[column], log=log)
            if band:
                _fill(axes, rows, ordered, x, column, band, ink, log)
            if summary or not each:
                _draw(axes, ordered, x, column, ink, log, label, 1.8, 1.0, _DASHES[place])
            if ends:
                bars = bar_lengths(values, [ordered[end].to_numpy(float) for end in ends])
                style: dict[str, Any] = {"fmt": "none", "ecolor": ink.light, "elinewidth": 1, "capsize": 2.5}
                axes.errorbar(across, values, yerr=bars, zorder=2.5, **style)
            if hollow and place == 0:
                _hollow(axes, rows, x, column, hollow, summary, ink, f"{name}, {hollow_name}")
            if place == 0:
                last = values[~np.isnan(values)]
                curves.append(Curve(end_text(name, float(last[-1])) if len(last) else "", across, values, ink.light))
    return finish(axes, frame, curves, table=table, x=x, y=columns[0])


def _summarized(rows: pd.DataFrame, x: str, summary: str | None) -> pd.DataFrame:
    """One row per x, in order; all rows without a summary."""
    if summary is None:
        return rows.sort_values(x, kind="stable")
    table: pd.DataFrame = rows.groupby(x).agg(summary, numeric_only=True).reset_index()
    return table


def _draw(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    column: str,
    ink: Ink,
    log: bool,
    label: str,
    width: float,
    alpha: float,
    dashes: Any = "solid",
) -> None:
    marker = ink.marker if len(rows) <= _MARKED and label != "_run" else "none"
    style: dict[str, Any] = {"marker": marker, "markersize": 5, "color": ink.light, "linewidth": width}
    style |= {"alpha": alpha, "linestyle": dashes, "zorder": 3}
    axes.plot(rows[x], drawable(rows[column], log=log), label=label, **style)


def _fill(
    axes: Axes, rows: pd.DataFrame, ordered: pd.DataFrame, x: str, column: str, band: str, ink: Ink, log: bool
) -> None:
    """A band around a line; on a logarithmic axis it is cut off at a tenth of the line, since 0 has no place."""
    middle = drawable(ordered[column], log=log)
    width = rows.groupby(x)[column].std().to_numpy(float) if band == "std" else ordered[band].to_numpy(float)
    width = np.nan_to_num(width)
    low = np.maximum(middle - width, middle / 10) if log else middle - width
    axes.fill_between(ordered[x], low, middle + width, color=ink.light, alpha=0.17, linewidth=0, zorder=2)


def _hollow(
    axes: Axes, rows: pd.DataFrame, x: str, column: str, hollow: str, summary: str | None, ink: Ink, label: str
) -> None:
    marked = _summarized(rows[rows[hollow].astype(bool)], x, summary)
    style: dict[str, Any] = {"marker": ink.marker, "markersize": 5.5, "markeredgewidth": 1.4}
    style |= {"markerfacecolor": PAPER.light, "markeredgecolor": ink.light}
    axes.plot(marked[x], marked[column], linestyle="none", label=label, zorder=4, **style)
