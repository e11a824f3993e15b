"""A matrix in colours."""

from __future__ import annotations

from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from normless_lab.plots.axes import SMALL_FONT_SIZE
from normless_lab.plots.frames import Frame, HeatMapStyle, require_columns, require_unique
from normless_lab.plots.grammars.frame import begin, finish
from normless_lab.plots.palette import PAPER, QUIET, SCHEME_INKS, TEXT

# More cells than this are an image: as shapes they would be most of a page.
_MOST_CELLS = 400


def heat_map(
    table: pd.DataFrame,
    ax: Axes | None = None,
    *,
    x: str,
    y: str,
    value: str,
    **style: Unpack[HeatMapStyle],
) -> Axes:
    """Draw the column of values at each x and y in colours, with a scale beside them; y goes down.

    Raises:
        ValueError: a column is missing, the table is empty, or a cell is there twice.
    """
    require_columns(table, [x, y, value], style.get("title", "A heat map"))
    require_unique(table, [x, y], "matrix")
    axes = begin(ax, style)
    matrix = table.pivot(index=y, columns=x, values=value)
    limit = max(float(np.nanmax(np.abs(matrix.to_numpy(float)))), 1e-12)
    signed, dark = style.get("signed", False), style.get("ink", SCHEME_INKS["none"])
    colours = [SCHEME_INKS["skipinit"], PAPER, SCHEME_INKS["none"]] if signed else [PAPER, dark, TEXT]
    mesh = axes.pcolormesh(
        matrix.columns.to_numpy(),
        matrix.index.to_numpy(),
        matrix.to_numpy(float),
        cmap=LinearSegmentedColormap.from_list("values", [colour.light for colour in colours]),
        vmin=-limit if signed else 0,
        vmax=limit,
        shading="nearest",
        zorder=2,
        rasterized=matrix.size > _MOST_CELLS,
    )
    axes.grid(visible=False)
    axes.invert_yaxis()
    figure = axes.get_figure(root=True)
    assert figure is not None
    scale = figure.colorbar(mesh, ax=axes, fraction=0.06, pad=0.03)
    scale.outline.set_visible(False)
    scale.ax.tick_params(colors=QUIET.light, labelsize=SMALL_FONT_SIZE, length=0)
    scale.set_label(style.get("unit", ""), fontsize=SMALL_FONT_SIZE, color=QUIET.light)
    frame: Frame = {"x_ticks": "integers", "y_ticks": "integers", **style, "names": "none"}  # type: ignore[typeddict-unknown-key]
    return finish(axes, frame, x=x, y=y)
