"""Measured points on the line of their prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normless_lab.plots.frames import PredictionStyle, require_columns, require_unique
from normless_lab.plots.grammars.frame import Numbers, begin, drawable, finish, series_column, series_of
from normless_lab.plots.palette import QUIET, Ink, series_ink

# More points than this would run together.
_MARKERS = 24


def measured_on_predicted(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    measured: str | Mapping[str, str],
    by: str | None = None,
    **style: Unpack[PredictionStyle],
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
    law, law_name, error = style.get("law"), style.get("law_name", ""), style.get("error")
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
            handles[named(label)] = _draw(axes, values, bars, ink, f"{label}, " if label else "", log, joined, shift)
        if law:
            heights, colour = drawable(ordered[law], log="y" in log), QUIET.light if law_name else own.light
            dots: dict[str, Any] = {"color": colour, "linestyle": ":", "linewidth": 1.2, "zorder": 2}
            drawn = axes.plot(ordered[x], heights, label=law_name or f"{name}, law", **dots)[0]
            handles |= {law_name: drawn} if law_name and not np.isnan(heights).all() else {}
    return finish(axes, style, handles, table=table, x=x, y=measured if isinstance(measured, str) else "")


def _draw(
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
