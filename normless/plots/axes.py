"""The look that all figures share, set on one Axes at a time: matplotlib's global state does not change."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normless.plots.palette import GRID, PAPER, QUIET, TEXT

FONT_SIZE = 10.0
SMALL_FONT_SIZE = 9.0


def new_axes(width: float = 4.9, height: float = 3.4) -> Axes:
    """One empty, styled Axes on a figure of its own (inches), small enough to be read on a telephone."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER.light)
    return style_axes(figure.add_subplot())


def new_panels(columns: int, rows: int = 1, *, width: float = 4.4, height: float = 3.4) -> list[Axes]:
    """Several empty, styled Axes on one figure, row by row; ``width`` and ``height`` (inches) are of each."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", facecolor=PAPER.light)
    return [style_axes(axes) for axes in figure.subplots(rows, columns, squeeze=False).flat]


def style_axes(axes: Axes) -> Axes:
    """Quiet spines and a horizontal grid below the data; returns the same Axes."""
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(QUIET.light)
    axes.grid(visible=True, axis="y", color=GRID.light, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    axes.tick_params(axis="x", which="major", length=3)
    return axes


def title_axes(axes: Axes, title: str) -> None:
    """Set the title above the plot at the left, in place of another."""
    axes.set_title(f"{title}\n", loc="left", fontsize=FONT_SIZE + 1, fontweight="bold", color=TEXT.light, pad=4)


def name_axes(axes: Axes, *, title: str, across: str, up: str) -> None:
    """Set the title and the name of the vertical axis above the plot at the left, the other name below."""
    title_axes(axes, title)
    axes.annotate(
        up,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 7),
        textcoords="offset points",
        fontsize=SMALL_FONT_SIZE,
        color=QUIET.light,
    )
    axes.set_xlabel(across, fontsize=SMALL_FONT_SIZE, color=QUIET.light)
