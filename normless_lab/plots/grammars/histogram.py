"""Histograms: of values, of counted bins, and of bars."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots.frames import Frame, HistogramStyle, Names, require_columns
from normless_lab.plots.grammars.frame import Numbers, begin, finish, series_column, series_of
from normless_lab.plots.palette import TEXT


def histogram(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str | None = None,
    by: str | None = None,
    **style: Unpack[HistogramStyle],
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
    names: Names = "none" if bars or (by is None and law is None) else "legend"
    frame: Frame = {"names": names, **style}  # type: ignore[typeddict-unknown-key]
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


def _draw_law(axes: Axes, law: pd.DataFrame, by: str | None, name: str, frame: Frame) -> None:
    require_columns(law, ["x", "density", by], name)
    for number, (_, rows, _) in enumerate(series_of(law, by, frame)):
        style: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.2, "color": TEXT.light, "zorder": 4}
        axes.plot(rows["x"], rows["density"], label=f"_{name}" if number else name, **style)


def _limit(axes: Axes, heights: Numbers, frame: Frame) -> None:
    """From 0; a logarithmic axis from a half, of several decades a tenth, of the lowest bar."""
    positive = heights[heights > 0]
    if "y" not in frame.get("log", ""):
        axes.set_ylim(bottom=0 if not (heights < 0).any() else None)
    elif len(positive):
        axes.set_ylim(positive.min() / 3, positive.max() * 2)
