"""The gradients of the loss with respect to the logits, by example and class."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import PAPER, QUIET, SCHEME_INKS, TEXT
from normless.plots.tables import require_columns


def logit_gradient_map(matrix: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw ∂L_b/∂z_j as a map of examples b and classes j, blue below 0 and orange above.

    A class that is favoured whatever the input is an orange column.

    Args:
        matrix: a row per example and class: ``example``, ``class``, ``gradient``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(matrix, ("example", "class", "gradient"), "The map of logit gradients")
    axes = new_axes() if ax is None else style_axes(ax)
    grid = matrix.pivot(index="example", columns="class", values="gradient")
    limit = max(float(grid.abs().to_numpy().max()), 1e-12)
    colours = [SCHEME_INKS["skipinit"].light, PAPER.light, SCHEME_INKS["none"].light]
    mesh = axes.pcolormesh(
        grid.columns.to_numpy(),
        grid.index.to_numpy(),
        grid.to_numpy(),
        cmap=LinearSegmentedColormap.from_list("signs", colours),
        vmin=-limit,
        vmax=limit,
        shading="nearest",
        zorder=2,
    )
    axes.grid(visible=False)
    axes.invert_yaxis()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(10, integer=True))
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(mesh, ax=axes, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    name_axes(axes, title="Gradients of the logits, ∂L_b/∂z_j", across="class j", up="example b")
    return axes


def bias_gradients(by_class: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the gradient of the classifier's bias of every class as bars, the favoured class in colour.

    Args:
        by_class: of the probe `logits`: ``class``, ``bias_gradient``, ``favoured``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(by_class, ("class", "bias_gradient", "favoured"), "The gradients of the bias")
    axes = new_axes() if ax is None else style_axes(ax)
    colours = [SCHEME_INKS["none"].light if favoured else QUIET.light for favoured in by_class["favoured"]]
    axes.bar(by_class["class"], by_class["bias_gradient"], color=colours, width=0.7, zorder=3)
    axes.axhline(0, color=TEXT.light, linewidth=0.8, zorder=4)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    name_axes(axes, title="Gradient of the classifier's bias", across="class", up="mean over examples of ∂L_b/∂z_j")
    return axes
