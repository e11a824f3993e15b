"""The correlation between two examples on the residual stream against the block."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.probes.measured_lines import draw_against_block
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

NAMES = {"skip_correlation": "skip path", "branch_correlation": "branch end", "sum_correlation": "sum"}
COLUMNS = ("block", *NAMES, *(f"predicted_{name}" for name in NAMES))


def example_correlation_against_block(covariance: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the correlation between two examples on the skip path, at the branch end and behind the sum.

    In a normalized ReLU network it is 1/π at every depth (De & Smith, appendix C); without normalization it climbs to
    1, and all examples look alike.

    Args:
        covariance: the table of `normless.probes._table` for one network: ``block`` (1..L),
            correlations in [-1, 1] and each ``predicted_``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, the table is empty, or a block is there twice.
    """
    require_columns(covariance, COLUMNS, "Correlation of examples against block")
    if covariance["block"].duplicated().any():
        raise ValueError("Expected one row per block, but one is there twice; draw one network.")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_ylim(min(0.0, float(covariance[list(NAMES)].min().min())), 1)
    names = {column: name for column, name in NAMES.items() if covariance[column].notna().any()}
    draw_against_block(axes, covariance, names, [series_ink(index) for index in range(len(names))])
    name_axes(axes, title="What examples share", across="block", up="correlation of two examples")
    return axes
