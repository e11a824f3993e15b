"""What runs reach at each learning rate, and at which they do not train."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import PAPER, Ink
from normless.plots.tables import require_columns

_MOST_TICKS = 6


def accuracy_against_rate(
    runs: pd.DataFrame, ax: Axes | None = None, *, series: str, inks: Mapping[str, Ink], title: str
) -> Axes:
    """Draw test accuracy against the learning rate (logarithmic), a named line per series through its means.

    A filled marker is a run that trained, a hollow one a run that diverged or stayed at chance.

    Args:
        runs: a row per run: the column `series`, ``rate``, ``outcome`` and ``test_accuracy`` (in percent).
        ax: where to draw; a new figure without it.
        series: the column of the names of the lines.
        inks: of each name.
        title: of the figure.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(runs, (series, "rate", "outcome", "test_accuracy"), "Accuracy against the learning rate")
    axes = new_axes() if ax is None else style_axes(ax)
    rates = sorted({float(rate) for rate in runs["rate"]})
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / 1.5, rates[-1] * 1.5)
    axes.set_ylim(0, 100)
    labels = []
    for name, rows in runs.groupby(series, sort=False):
        ink = inks[str(name)]
        means = rows.groupby("rate")["test_accuracy"].mean().dropna()
        axes.plot(means.index, means, color=ink.light, linewidth=1.4, zorder=2, label=str(name))
        for trained, face in ((True, ink.light), (False, PAPER.light)):
            some = rows[(rows["outcome"] == "trained") == trained]
            axes.plot(
                some["rate"],
                some["test_accuracy"],
                linestyle="none",
                marker=ink.marker,
                markersize=5.5,
                markerfacecolor=face,
                markeredgecolor=ink.light,
                label=f"{name}, {'trained' if trained else 'not trained'}",
                zorder=3,
            )
        if len(means):
            labels.append(EndLabel(str(name), float(means.index[-1]), float(means.iloc[-1]), ink.light))
    axes.xaxis.set_major_locator(FixedLocator(rates[:: -(-len(rates) // _MOST_TICKS)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    name_axes(axes, title=title, across="learning rate (hollow: diverged or at chance)", up="test accuracy (%)")
    label_ends(axes, labels)
    return axes
