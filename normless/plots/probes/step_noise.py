"""The noise of minibatch steps against the batch size."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, ScalarFormatter

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import label_ends
from normless.plots.probes.measured_lines import draw_measured
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

COLUMNS = ("batch_size", "learning_rate", "noise", "predicted_noise")


def step_noise_against_batch_size(noise: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the squared error of minibatch steps as points on the lines α²M/|B|, a line per rate; both logarithmic.

    Args:
        noise: of ``sgd_noise_table``: ``batch_size``, ``learning_rate``, ``noise``, ``predicted_noise`` (in squared
            units of the parameters).
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(noise, COLUMNS, "The noise of minibatch steps")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log")
    axes.set_yscale("log")
    labels = []
    for index, (rate, rows) in enumerate(noise.groupby("learning_rate")):
        ordered = rows.sort_values("batch_size")
        across, measured, predicted = (ordered[name] for name in ("batch_size", "noise", "predicted_noise"))
        labels.append(draw_measured(axes, across, measured, predicted, series_ink(index), f"α = {rate:g}"))
    axes.set_ylim(axes.get_ylim())
    sizes = sorted(noise["batch_size"].unique())
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0), numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    name_axes(
        axes,
        title="Noise of a minibatch step",
        across="minibatch size |B|",
        up="mean ‖step - α∇f‖²; line: α²M/|B|",
    )
    label_ends(axes, labels)
    return axes
