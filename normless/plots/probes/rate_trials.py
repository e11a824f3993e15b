"""Which learning rates a network tolerated."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.palette import PAPER, scheme_ink
from normless.plots.tables import require_columns


def rate_trials(trials: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the runs of searches for the largest stable rate: filled where they held, hollow where they diverged.

    Args:
        trials: a row per run: ``scheme``, ``rate``, ``diverged``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(trials, ("scheme", "rate", "diverged"), "The trials of rates")
    axes = new_axes(height=2.6) if ax is None else style_axes(ax)
    schemes = [str(scheme) for scheme in trials["scheme"].unique()]
    for height, scheme in enumerate(schemes):
        rows, ink = trials[trials["scheme"] == scheme], scheme_ink(scheme)
        diverged = rows["diverged"].astype(bool)
        for chosen, filled, label in ((~diverged, True, scheme), (diverged, False, f"{scheme}, diverged")):
            axes.plot(
                rows["rate"][chosen],
                [height] * int(chosen.sum()),
                linestyle="none",
                marker=ink.marker,
                markersize=7,
                markerfacecolor=ink.light if filled else PAPER.light,
                markeredgecolor=ink.light,
                label=label,
                zorder=3,
            )
        stable = rows["rate"][~diverged]
        if len(stable):
            axes.plot([trials["rate"].min() / 2, stable.max()], [height] * 2, color=ink.light, linewidth=2, zorder=2)
    axes.set_xscale("log")
    axes.set_xlim(trials["rate"].min() / 2, trials["rate"].max() * 2)
    axes.set_ylim(len(schemes) - 0.5, -0.5)
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(schemes)))))
    axes.set_yticklabels([scheme.partition("(")[0] for scheme in schemes])
    axes.xaxis.set_major_locator(LogLocator(10, numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="y")
    name_axes(axes, title="Learning rates tolerated", across="learning rate", up="filled: held; hollow: diverged")
    return axes
