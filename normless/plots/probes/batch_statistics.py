"""What batch norm sees of the residual stream: variances and batch statistics against the block."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.probes.measured_lines import draw_against_block
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

NAMES = {
    "skip_variance": "skip path",
    "branch_variance": "branch end",
    "norm_variance": "norm: variance",
    "norm_mean_square": "norm: mean²",
}
COLUMNS = ("block", *NAMES, *(f"predicted_{name}" for name in NAMES))


def batch_statistics_against_block(signal: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw variances on the skip path and at the branch end, and the norm's statistics, against the block.

    Figures 2 and 5 of De & Smith: in a normalized ReLU network the skip path has variance d, of which the norm sees
    d(1 - 1/π) as variance and d/π as squared mean.

    Args:
        signal: the table of `normless.probes._table` for one network: ``block`` (1..L), variances over
            examples, channels and positions, the norm's statistics averaged over channels, and each ``predicted_``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, the table is empty, or a block is there twice.
    """
    require_columns(signal, COLUMNS, "Batch statistics against block")
    if signal["block"].duplicated().any():
        raise ValueError("Expected one row per block, but one is there twice; draw one network.")
    axes = new_axes() if ax is None else style_axes(ax)
    top = float(signal[list(NAMES)].max().max())
    axes.set_ylim(0, 1.05 * top)
    names = {column: name for column, name in NAMES.items() if signal[column].notna().any()}
    draw_against_block(axes, signal, names, [series_ink(index) for index in range(len(names))])
    name_axes(axes, title="Batch statistics at initialization", across="block", up="variance, or squared mean")
    return axes
