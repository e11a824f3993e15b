"""How far computations are from the formulas they should follow."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

# What is exactly nought is drawn here, below any rounding.
_FLOOR = 1e-18
_LETTERS = 46


def agreement_of_quantities(agreements: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the deviation of every quantity as a point beside its tolerance, a bar; logarithmic, exact ones at 1e-18.

    Filled points are within their tolerance.

    Args:
        agreements: a row per quantity: ``quantity`` (its name), ``deviation``, ``tolerance``; from top to bottom.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(agreements, ("quantity", "deviation", "tolerance"), "Agreement of quantities")
    names = [textwrap.fill(str(name), _LETTERS) for name in agreements["quantity"]]
    lines = sum(name.count("\n") + 1 for name in names)
    axes = (
        new_axes(width=7.2, height=max(1.8, 0.2 * lines + 0.16 * len(names) + 0.9)) if ax is None else style_axes(ax)
    )
    axes.set_xscale("log")
    deviations, tolerances = (agreements[name].clip(lower=_FLOOR) for name in ("deviation", "tolerance"))
    places = pd.Series(range(len(agreements)), index=agreements.index)
    agrees = agreements["deviation"] <= agreements["tolerance"]
    axes.plot(tolerances, places, linestyle="none", marker="|", markersize=13, color=QUIET.light, label="tolerance")
    for within, name, ink in ((True, "within", series_ink(0)), (False, "beyond", series_ink(1))):
        kept = agrees == within
        axes.plot(
            deviations[kept],
            places[kept],
            linestyle="none",
            marker=ink.marker,
            markersize=6,
            markerfacecolor=ink.light if within else "none",
            markeredgecolor=ink.light,
            label=name,
        )
    axes.set_ylim(len(agreements) - 0.5, -0.5)
    axes.set_xlim(_FLOOR / 3, 10 * max(float(deviations.max()), float(tolerances.max()), 1e-8))
    axes.set_yticks(list(places), names, fontsize=SMALL_FONT_SIZE)
    axes.xaxis.set_major_locator(LogLocator(10, numticks=7))
    axes.xaxis.set_minor_locator(NullLocator())
    name_axes(axes, title="Computed and by formula", across="largest deviation; bar: tolerance; 10⁻¹⁸: none", up="")
    return axes
