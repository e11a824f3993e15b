"""Names at the ends of their lines, moved apart where they would cover each other; and legends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normless.plots.axes import SMALL_FONT_SIZE
from normless.plots.palette import TEXT


@dataclass(frozen=True)
class EndLabel:
    """A text beside the point (x, y), in data coordinates, at which its line ends."""

    text: str
    x: float
    y: float
    colour: str


@dataclass(frozen=True)
class Curve:
    """A drawn line and its name; NaN is a gap, and what is infinite lies beyond the plot."""

    name: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    colour: str


def end_label(axes: Axes, curve: Curve) -> EndLabel | None:
    """The name at the last point, or with an arrow where the line leaves the plot; None without name or points."""
    known = ~np.isnan(curve.y)
    if not curve.name or not known.any():
        return None
    x, y = curve.x[known], curve.y[known]
    low, high = sorted(axes.get_ylim())
    if low <= y[-1] <= high:
        return EndLabel(curve.name, float(x[-1]), float(y[-1]), curve.colour)
    inside = np.flatnonzero((y >= low) & (y <= high))
    last = float(x[inside[-1] if len(inside) else 0])
    return EndLabel(f"{curve.name} {'↓' if y[-1] < low else '↑'}", last, low if y[-1] < low else high, curve.colour)


def spread(wanted: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """The positions nearest to ``wanted``, in its order, at least ``gap`` apart, in [low, high] if they fit.

    This is the least-squares solution: with the gaps subtracted only the order is constrained, and the
    nearest ordered sequence is the isotonic regression (pool adjacent violators).

    Raises:
        ValueError: ``gap`` is negative or ``high`` lies below ``low``.
    """
    if gap < 0 or high < low:
        raise ValueError(f"Expected gap ≥ 0 and high ≥ low, got gap {gap}, low {low} and high {high}.")
    if not len(wanted):
        return []
    order = np.argsort(np.asarray(wanted, dtype=float), kind="stable")
    gaps = gap * np.arange(len(order))
    pools: list[tuple[float, int]] = []
    for target in np.asarray(wanted, dtype=float)[order] - gaps:
        mean, size = float(target), 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean = (mean * size + before * count) / (size + count)
            size += count
        pools.append((mean, size))
    without_gaps = np.repeat([mean for mean, _ in pools], [size for _, size in pools])
    placed = np.empty(len(order))
    placed[order] = np.clip(without_gaps, low, low + max(high - low - gaps[-1], 0.0)) + gaps
    return [float(position) for position in placed]


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write each label at the right of the Axes, joined to the end of its line; the limits must be set."""
    to_fraction = axes.transData + axes.transAxes.inverted()
    heights = [float(to_fraction.transform((label.x, label.y))[1]) for label in labels]
    line_height = 1.35 * SMALL_FONT_SIZE / 72 * axes.figure.dpi / axes.get_window_extent().height
    arrow = {"arrowstyle": "-", "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 6, "relpos": (0, 0.5)}
    for label, height in zip(labels, spread(heights, line_height), strict=True):
        axes.annotate(
            label.text,
            xy=(label.x, label.y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            color=label.colour,
            fontsize=SMALL_FONT_SIZE,
            fontweight="bold",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops=arrow | {"color": label.colour},
        )


def add_legend(axes: Axes, *, beside: bool) -> None:
    """A legend in the plot or at its right, with marks as bright as those in the plot are not."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {"loc": "best"}
    legend = axes.legend(frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor=TEXT.light, **place)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
            if isinstance(handle, Line2D) and handle.get_marker() == ".":
                handle.set_markersize(8)
