"""The average gradient between in- and out-channels of a layer, as a picture of the matrix."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import PAPER, QUIET, TEXT, scheme_ink
from normless.plots.tables import require_columns

COLUMNS = ("layer", "out_channel", "in_channel", "gradient")


def channel_pair_matrix(pairs: pd.DataFrame, ax: Axes | None = None, *, scheme: str = "none") -> Axes:
    """Draw the matrix Σ_i |∂L/∂K(o, c, i)| of one layer, darker where it is larger, in multiples of its mean.

    Both sides are sorted by their channels' own means, so that channels which are consistently large gather in a
    corner; without such structure the picture is even.

    Args:
        pairs: a row per pair of channels of one layer: ``layer``, ``out_channel``, ``in_channel``, ``gradient``.
        ax: where to draw; a new figure without it.
        scheme: whose colour it has.

    Raises:
        ValueError: a column is missing, the table is empty, or it has more than one layer.
    """
    require_columns(pairs, COLUMNS, "The matrix of channel pairs")
    layers = list(pairs["layer"].unique())
    if len(layers) > 1:
        raise ValueError(f"Expected the pairs of one layer, got those of {', '.join(map(str, layers))}; choose one.")
    matrix = pairs.pivot(index="out_channel", columns="in_channel", values="gradient").to_numpy(float)
    mean = np.nanmean(matrix)
    matrix = matrix / mean if mean else matrix
    matrix = matrix[np.argsort(-matrix.mean(1))][:, np.argsort(-matrix.mean(0))]
    axes = new_axes(4.3, 3.6) if ax is None else style_axes(ax)
    colours = LinearSegmentedColormap.from_list("share", [PAPER.light, scheme_ink(scheme).light, TEXT.light])
    top = max(float(np.nanmax(matrix)), 1.0)
    image = axes.imshow(matrix, cmap=colours, vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    bar = axes.get_figure(root=True)
    assert bar is not None
    scale = bar.colorbar(image, ax=axes, fraction=0.06, pad=0.03)
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    scale.set_label("× mean", fontsize=SMALL_FONT_SIZE, color=QUIET.light)
    name_axes(axes, title=f"Gradient by channels, {layers[0]}", across="in-channel, sorted", up="out-channel, sorted")
    return axes
