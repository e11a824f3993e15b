"""Test accuracy against depth, one line per scheme."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import PAPER, QUIET, scheme_ink
from normless.plots.tables import require_columns


def accuracy_against_depth(runs: pd.DataFrame, ax: Axes | None = None, *, chance: float | None = None) -> Axes:
    """Draw final test accuracy against depth (logarithmic), one named line per scheme.

    Args:
        runs: a row per run: ``depth``, ``scheme``, ``outcome`` (``trained``, or why not) and ``test_accuracy`` in
            0..1. Runs of one depth and scheme are averaged; a run without an accuracy leaves a gap.
        ax: where to draw; a new figure without it.
        chance: the accuracy of guessing, drawn as a dashed line.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(runs, ("depth", "scheme", "outcome", "test_accuracy"), "Accuracy against depth")
    axes = new_axes() if ax is None else style_axes(ax)
    depths = sorted(int(depth) for depth in runs["depth"].unique())
    axes.set_xscale("log")
    axes.set_xlim(depths[0] / 1.15, depths[-1] * 1.15)
    axes.set_ylim(0, 1)
    if chance is not None:
        axes.axhline(chance, color=QUIET.light, linewidth=1, linestyle=(0, (3, 3)), zorder=1, label="chance")
        axes.annotate(
            "chance",
            xy=(0, chance),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            color=QUIET.light,
            fontsize=SMALL_FONT_SIZE,
        )
    labels = [_draw_scheme(axes, str(scheme), rows) for scheme, rows in runs.groupby("scheme", sort=False)]
    name_axes(axes, title="Which networks train", across="depth (layers)", up="test accuracy")
    axes.xaxis.set_major_locator(FixedLocator(depths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    label_ends(axes, [label for label in labels if label is not None])
    return axes


def _draw_scheme(axes: Axes, scheme: str, rows: pd.DataFrame) -> EndLabel | None:
    """One line, its failed runs as hollow markers; None where no run has an accuracy."""
    ink = scheme_ink(scheme)
    means = rows.groupby("depth")["test_accuracy"].mean()
    axes.plot(
        means.index,
        means,
        color=ink.light,
        marker=ink.marker,
        markersize=6,
        linewidth=2,
        label=scheme,
        zorder=3,
    )
    failed = rows[rows["outcome"] != "trained"].groupby("depth")["test_accuracy"].mean()
    axes.plot(
        failed.index,
        failed,
        linestyle="none",
        marker=ink.marker,
        markersize=6,
        markerfacecolor=PAPER.light,
        markeredgecolor=ink.light,
        markeredgewidth=1.4,
        label=f"{scheme}, not trained",
        zorder=4,
    )
    measured = means.dropna()
    if measured.empty:
        return None
    depth, accuracy = float(measured.index[-1]), float(measured.iloc[-1])
    return EndLabel(f"{scheme}  {100 * accuracy:.0f} %", depth, accuracy, ink.light)
