"""What each class contributes to the gradient of a parameter."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET, SCHEME_INKS
from normless.plots.tables import require_columns

# Below this share of the largest a class is left out of the logarithmic picture: its gradient is nought to the eye.
_SMALLEST = 1e-4


def gradient_by_class(by_class: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the mean absolute gradient of a parameter by class as bars (logarithmic), the largest in colour.

    Args:
        by_class: a row per class: ``class``, ``mean_abs``; one parameter.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, the table is empty, or a class is there twice.
    """
    require_columns(by_class, ("class", "mean_abs"), "The gradient by class")
    if by_class["class"].duplicated().any():
        raise ValueError("Expected one row per class, but a class has several; draw one parameter.")
    axes = new_axes() if ax is None else style_axes(ax)
    largest = float(by_class["mean_abs"].max())
    colours = [SCHEME_INKS["none"].light if value == largest else QUIET.light for value in by_class["mean_abs"]]
    axes.bar(by_class["class"], by_class["mean_abs"], color=colours, width=0.7, zorder=3)
    _logarithmic(axes, largest)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    name_axes(axes, title="Gradient by class", across="class", up="mean |gradient| that its logit sends back")
    return axes


def elements_by_class(elements: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the absolute gradients of a parameter's elements by class, each class's from largest to smallest.

    Args:
        elements: a row per class and element: ``class``, ``element``, ``gradient``; one parameter.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, the table is empty, or an element is there twice for a class.
    """
    require_columns(elements, ("class", "element", "gradient"), "Gradients of elements by class")
    if elements.duplicated(["class", "element"]).any():
        raise ValueError("Expected one row per class and element, but one is there twice; draw one parameter.")
    axes = new_axes() if ax is None else style_axes(ax)
    sizes = elements.assign(size=elements["gradient"].abs())
    first = sizes.groupby("class")["size"].sum().idxmax()
    _logarithmic(axes, float(sizes["size"].max()))
    for label in sizes["class"].unique():
        rows = sizes[sizes["class"] == label]
        values = np.sort(rows["size"].to_numpy(float))[::-1]
        ranks = np.arange(1, len(values) + 1)
        colour = SCHEME_INKS["none"].light if label == first else QUIET.light
        width = 2.2 if label == first else 1.0
        axes.plot(ranks, values, color=colour, linewidth=width, zorder=4 if label == first else 3, label=str(label))
        if label == first:
            middle = int((values >= axes.get_ylim()[0]).sum()) // 2
            axes.annotate(
                f"class {label}",
                xy=(float(ranks[middle]), values[middle]),
                xytext=(8, 5),
                textcoords="offset points",
                color=colour,
                fontsize=SMALL_FONT_SIZE,
                fontweight="bold",
            )
    axes.set_xlim(0, sizes["element"].max() + 1)
    name_axes(axes, title="Gradients of a weight by class", across="element, from the largest", up="|gradient|")
    return axes


def _logarithmic(axes: Axes, largest: float) -> None:
    axes.set_yscale("log")
    top = largest if largest > 0 else 1.0
    axes.set_ylim(top * _SMALLEST, top * 2)
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
