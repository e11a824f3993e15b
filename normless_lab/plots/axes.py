"""The style of all figures, set on one Axes at a time; matplotlib's global state does not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
import numpy.typing as npt
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


@dataclass(frozen=True)
class Curve:
    """A drawn line and its name; NaN is a gap, and infinite values lie beyond the plot."""

    name: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    colour: str


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return heights from 0 to 1 that are at least ``gap`` apart and in the order of the wanted heights.

    The sum of squared shifts is the least possible within the interval, or above it where there is no room: with the
    gaps subtracted only the order is constrained, and the nearest ordered sequence is the isotonic regression, of
    each place the greatest of the least means of the runs through it (Barlow et al. 1972, the min-max formula).

    Raises:
        ValueError: ``gap`` is negative.
    """
    if gap < 0:
        raise ValueError(f"Expected gap ≥ 0, got gap {gap}.")
    count = len(wanted)
    order = np.argsort(np.asarray(wanted, dtype=float), kind="stable")
    gaps = gap * np.arange(count)
    sums = np.append(0.0, np.cumsum(np.asarray(wanted, dtype=float)[order] - gaps))
    first, last = np.ogrid[:count, :count]
    means = (sums[1:] - sums[:-1, None]) / np.maximum(last - first + 1, 1)
    least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    nearest = np.where(first <= last, least, -np.inf).max(axis=0, initial=-np.inf)
    placed = np.empty(count)
    placed[order] = np.clip(nearest, 0.0, max(1.0 - gaps[-1:].sum(), 0.0)) + gaps
    return [float(position) for position in placed]


def label_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Write the name of each curve at the right of the Axes, joined to its end; the limits must be set."""
    ends = [(curve, *_end(axes, curve)) for curve in curves if curve.name and not np.isnan(curve.y).all()]
    to_fraction = axes.transData + axes.transAxes.inverted()
    heights = [float(to_fraction.transform((x, y))[1]) for _, _, x, y in ends]
    line_height = 1.35 * SMALL_FONT_SIZE / 72 * axes.figure.dpi / axes.get_window_extent().height
    arrow = {"arrowstyle": "-", "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 6, "relpos": (0, 0.5)}
    for (curve, text, x, y), height in zip(ends, spread(heights, line_height), strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            color=curve.colour,
            fontsize=SMALL_FONT_SIZE,
            fontweight="bold",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops=arrow | {"color": curve.colour},
        )


def _end(axes: Axes, curve: Curve) -> tuple[str, float, float]:
    """The name and the last point (x, y) of a curve; with an arrow and where it leaves the plot if it does."""
    known = ~np.isnan(curve.y)
    x, y = curve.x[known], curve.y[known]
    low, high = sorted(axes.get_ylim())
    if low <= y[-1] <= high:
        return curve.name, float(x[-1]), float(y[-1])
    inside = np.flatnonzero((y >= low) & (y <= high))
    last = float(x[inside[-1] if len(inside) else 0])
    return f"{curve.name} {'↓' if y[-1] < low else '↑'}", last, low if y[-1] < low else high


def add_legend(axes: Axes, *, beside: bool) -> None:
    """Add a legend in the plot or at its right, with marks brighter than those in the plot."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    legend = axes.legend(frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor=TEXT.light, **place)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
            if isinstance(handle, Line2D) and handle.get_marker() == ".":
                handle.set_markersize(8)
