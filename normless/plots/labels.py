"""Names written at the end of their lines, moved apart where they would cover each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from normless.plots.axes import SMALL_FONT_SIZE


@dataclass(frozen=True)
class EndLabel:
    """A text beside the point (x, y), in data coordinates, at which its line ends."""

    text: str
    x: float
    y: float
    colour: str


def spread(wanted: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """The positions nearest to ``wanted``, in its order, at least ``gap`` apart, in [low, high] if they fit.

    This is the least-squares solution: with the gaps subtracted, order is all that is asked, and the nearest
    ordered sequence is the isotonic regression (pool adjacent violators).

    Raises:
        ValueError: ``gap`` is negative or ``high`` lies below ``low``.
    """
    if gap < 0 or high < low:
        raise ValueError(f"Expected gap ≥ 0 and high ≥ low, got gap {gap}, low {low} and high {high}.")
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
    room = max(high - low - (gaps[-1] if len(gaps) else 0.0), 0.0)
    placed = np.empty(len(order))
    placed[order] = np.clip(without_gaps, low, low + room) + gaps
    return [float(position) for position in placed]


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write each label at the right of the Axes, joined to the end of its line; the limits must be set."""
    to_fraction = axes.transData + axes.transAxes.inverted()
    heights = [float(to_fraction.transform((label.x, label.y))[1]) for label in labels]
    line_height = 1.35 * SMALL_FONT_SIZE / 72 * axes.figure.dpi / axes.get_window_extent().height
    for label, height in zip(labels, spread(heights, line_height), strict=True):
        axes.annotate(
            label.text,
            xy=(label.x, label.y),
            xycoords="data",
            xytext=(1.05, height),
            textcoords="axes fraction",
            color=label.colour,
            fontsize=SMALL_FONT_SIZE,
            fontweight="bold",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": label.colour,
                "linewidth": 0.7,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 6,
                "relpos": (0, 0.5),
            },
        )
