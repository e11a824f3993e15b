"""Which sets of parameters a network is positively homogeneous in."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

# A set whose error is exactly nought is drawn here, below any rounding.
_FLOOR = 1e-9


def homogeneity_of_sets(sets: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the relative error ‖f(a·θ) − a·f(θ)‖/‖a·f(θ)‖ of every set (logarithmic), the homogeneous ones filled.

    Args:
        sets: a row per set: ``set`` (its name), ``relative_error``, ``homogeneous``; drawn from top to bottom.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(sets, ("set", "relative_error", "homogeneous"), "Homogeneity of sets")
    axes = new_axes(width=6.4, height=max(1.6, 0.24 * len(sets) + 0.9)) if ax is None else style_axes(ax)
    axes.set_xscale("log")
    errors = sets["relative_error"].clip(lower=_FLOOR)
    places = pd.Series(range(len(sets)), index=sets.index)
    for homogeneous, name in ((True, "homogeneous"), (False, "not homogeneous")):
        kept = sets["homogeneous"] == homogeneous
        colour = series_ink(0).light if homogeneous else QUIET.light
        axes.plot(
            errors[kept],
            places[kept],
            linestyle="none",
            marker="o",
            markersize=6,
            markerfacecolor=colour if homogeneous else "none",
            markeredgecolor=colour,
            label=name,
        )
    axes.set_ylim(len(sets) - 0.5, -0.5)
    axes.set_xlim(_FLOOR / 2, 5)
    axes.set_yticks(list(places), list(sets["set"]), fontsize=SMALL_FONT_SIZE)
    axes.xaxis.set_major_locator(LogLocator(10, numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    name_axes(axes, title="Homogeneous sets", across="relative error in f(aθ) = a f(θ)", up="")
    return axes
