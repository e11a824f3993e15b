"""Several plots on one figure, one below the other, so that they stay legible on a narrow page."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normless.report.axes import style_axes
from normless.report.palette import PAPER


def stacked_axes(count: int, *, width: float = 4.9, height: float = 3.2) -> list[Axes]:
    """Empty, styled Axes on one figure, from top to bottom; `width` and `height` of each in inches.

    Raises:
        ValueError: a count below 1.
    """
    if count < 1:
        raise ValueError(f"A figure has at least one panel, got count={count}.")
    figure = Figure(figsize=(width, height * count), layout="constrained", facecolor=PAPER.light)
    return [style_axes(figure.add_subplot(count, 1, place + 1)) for place in range(count)]
