"""Points of named rows, one below the other, with bars and reference marks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import SMALL_FONT_SIZE
from normless.plots.grammars.frame import bar_lengths
from normless.plots.palette import GRID, PAPER, QUIET, Ink, inks_of

# Letters of a name in one line.
_LETTERS = 46


def rows_size(table: pd.DataFrame, y: str, groups: str | None) -> tuple[float, float]:
    """Inches of a figure whose rows have room for their names."""
    names = [_spoken(name) for name, _ in _rows(table, y, groups)]
    lines = sum(name.count("\n") + 1 for name in names)
    longest = max(len(line) for name in names for line in name.split("\n"))
    return 4.6 + 0.055 * longest, 1.2 + 0.17 * lines + 0.1 * len(names)


def draw_rows(
    axes: Axes,
    table: pd.DataFrame,
    columns: tuple[str, str, str],
    options: tuple[str | None, str | None, str, str | None],
    ends: Sequence[str],
    inks: Mapping[str, Ink] | None,
) -> None:
    """Draw each row's point, its bar, and its reference mark.

    Columns are those across, of the names and of the series; options the columns of hollow points and of reference
    numbers, the marker of those, and the column of groups.
    """
    x, y, by = columns
    hollow, beside, marker, groups = options
    chosen = inks_of({str(name): str(name) for name in table[by].unique()}) | dict(inks or {})
    places: dict[str, int] = {}
    for place, (name, row) in enumerate(_rows(table, y, groups)):
        if row is None:
            continue
        # Rows of one name share a line, unless groups repeat them.
        height = place if groups else places.setdefault(name, len(places))
        if beside and math.isfinite(row[beside]):
            style: dict[str, Any] = {"color": QUIET.light, "markerfacecolor": PAPER.light, "markeredgewidth": 1.4}
            style["markersize"] = 12 if marker == "|" else 6
            axes.plot([row[beside]], [height], marker=marker, linestyle="none", label="_beside", zorder=2, **style)
        if math.isfinite(row[x]):
            ink, open_point = chosen[str(row[by])], bool(hollow and row[hollow])
            axes.errorbar(
                [row[x]],
                [height],
                xerr=bar_lengths(np.array([row[x]]), [np.array([row[end]], dtype=float) for end in ends]),
                color=ink.light,
                marker=ink.marker,
                markersize=6.5,
                markerfacecolor=PAPER.light if open_point else ink.light,
                capsize=3,
                label=f"{name}, hollow" if open_point else name,
                zorder=3,
            )


def style_rows(axes: Axes, table: pd.DataFrame, y: str, groups: str | None) -> Axes:
    """Names at the left, those of groups in bold, and a grid of upright lines."""
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
    """The name and the values of each row, and the headings of groups, which have no values."""
    if groups is None:
        return [(str(row[y]), row) for row in table.to_dict("records")]
    return [
        line
        for group, rows in table.groupby(groups, sort=False)
        for line in [(str(group), None), *((str(row[y]), row) for row in rows.to_dict("records"))]
    ]


def _spoken(name: str) -> str:
    return fill(name.replace("_", " "), _LETTERS)
