"""How many steps gradient descent takes on linear systems of some condition numbers."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import label_ends
from normless.plots.probes.measured_lines import draw_measured
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

COLUMNS = ("condition_number", "steps", "predicted_steps")


def descent_steps(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the steps at the best rate against the condition number, points beside the predicted line; logarithmic.

    Args:
        table: of ``descent_table``: ``condition_number``, ``steps``, ``predicted_steps`` (an upper bound).
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(table, COLUMNS, "The steps of gradient descent")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ordered = table.sort_values("condition_number")
    across, measured, predicted = (ordered[name] for name in COLUMNS)
    label = draw_measured(axes, across, measured, predicted, series_ink(0), "steps")
    axes.set_ylim(axes.get_ylim())
    axes.xaxis.set_major_locator(FixedLocator([float(value) for value in across]))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    name_axes(
        axes,
        title="Ill-conditioned systems are slow",
        across="condition number κ",
        up="steps of gradient descent; line: by the extremes",
    )
    label_ends(axes, [label])
    return axes
