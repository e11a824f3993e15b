"""The style of all figures, set on one Axes at a time; matplotlib's global state does not change."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normless_lab.plots.palette import GRID, PAPER, QUIET, TEXT

FONT_SIZE = 10.0
SMALL_FONT_SIZE = 9.0


def new_axes(width: float = 4.9, height: float = 3.4) -> Axes:
    """Return an empty, styled Axes on a new figure (size in inches), small enough for a telephone."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER.light)
    return style_axes(figure.add_subplot())


def new_panels(columns: int, rows: int = 1, *, width: float = 4.4, height: float = 3.4) -> list[Axes]:
    """Return several empty, styled Axes on one figure, row by row, each of ``width`` by ``height`` inches."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", facecolor=PAPER.light)
    return [style_axes(axes) for axes in figure.subplots(rows, columns, squeeze=False).flat]


def style_axes(axes: Axes) -> Axes:
    """Set light spines and a horizontal grid below the data; return the same Axes."""
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET.light)
    axes.grid(visible=True, axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    axes.tick_params(axis="x", which="major", length=3)
    # The name of the vertical axis is above the plot at the left.
    axes.yaxis.set_offset_position("right")
    axes.yaxis.get_offset_text().set_fontsize(SMALL_FONT_SIZE)
    return axes


def title_axes(axes: Axes, title: str) -> None:
    """Set or replace the title above the plot at the left, wrapped to the width of its panel."""
    axes.set_title(
        f"{_wrapped(axes, title, FONT_SIZE + 1)}\n",
        loc="left",
        fontsize=FONT_SIZE + 1,
        fontweight="bold",
        color=TEXT.light,
        pad=4,
    )


def _wrapped(axes: Axes, text: str, size: float) -> str:
    """The text in lines that a panel has room for; letters of a size in points are 0.62 of it wide on average."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    if figure is None:
        return text
    columns = place.get_gridspec().ncols if place is not None else 1
    letters = int(72 * figure.get_size_inches()[0] / columns / (0.62 * size))
    return "\n".join(fill(line, max(letters, 12)) for line in text.split("\n"))


def name_axes(axes: Axes, *, title: str, across: str, up: str) -> None:
    """Set the title and the name of the vertical axis above the plot at the left, the other name below."""
    up = _wrapped(axes, up, SMALL_FONT_SIZE)
    # The name of the vertical axis has the last of the title's lines, and further ones of its own.
    title_axes(axes, f"{title}" + "\n" * up.count("\n"))
    axes.annotate(
        up,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 7),
        textcoords="offset points",
        fontsize=SMALL_FONT_SIZE,
        color=QUIET.light,
        verticalalignment="bottom" if "\n" in up else "baseline",
    )
    axes.set_xlabel(across, fontsize=SMALL_FONT_SIZE, color=QUIET.light)


def add_legend(axes: Axes, handles: Mapping[str, Artist] | None = None, *, beside: bool = True) -> None:
    """Add a legend at the right of the plot or in it, of these artists by their names, or of all with a label."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    if handles is not None:
        place |= {"handles": list(handles.values()), "labels": list(handles)}
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL_FONT_SIZE, "handlelength": 1.4}
    legend = axes.legend(labelcolor=TEXT.light if handles is None else "linecolor", **style, **place)
    # Marks in the legend are brighter than those in the plot.
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
            if isinstance(handle, Line2D) and handle.get_marker() == ".":
                handle.set_markersize(8)
