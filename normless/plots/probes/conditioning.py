"""Condition number and largest singular value of products of matrices against the number of factors."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import TEXT
from normless.plots.probes.series import power_of_ten, series_ink
from normless.plots.tables import require_columns

_APART = 0.15


def condition_against_factors(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the condition number (logarithmic) with its deviation over runs, the prediction as a line.

    This is figure 11 of "Understanding batch normalization" (Bjorck et al. 2018).

    Args:
        table: a row per number of factors: ``factors``, ``mean_log10_condition``, ``std_log10_condition``,
            ``predicted_log10_condition``. A column ``series``, where there is one, names what the rows belong to,
            each drawn in its own colour.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    axes = _draw(table, "log10_condition", "Condition number against number of factors", ax)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda exponent, _: power_of_ten(exponent)))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    name_axes(axes, title="Ill-conditioned with depth", across="number of factors", up="condition number κ")
    return axes


def largest_value_against_factors(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the largest singular value with its deviation over runs, the limit of theorem 1 as a line.

    This is figure 12 of "Understanding batch normalization" (Bjorck et al. 2018).

    Args:
        table: a row per number of factors: ``factors``, ``mean_largest``, ``std_largest``, ``predicted_largest``, and
            ``series`` as for `condition_against_factors`.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    axes = _draw(table, "largest", "Largest singular value against number of factors", ax)
    axes.set_ylim(bottom=0)
    name_axes(axes, title="Largest singular value", across="number of factors", up="largest singular value")
    return axes


def _draw(table: pd.DataFrame, quantity: str, purpose: str, ax: Axes | None) -> Axes:
    mean, deviation, predicted = f"mean_{quantity}", f"std_{quantity}", f"predicted_{quantity}"
    require_columns(table, ("factors", mean, deviation, predicted), purpose)
    axes = new_axes() if ax is None else style_axes(ax)
    named = table if "series" in table else table.assign(series="measured")
    middle = (named["series"].nunique() - 1) / 2
    for index, (series, rows) in enumerate(named.groupby("series", sort=False)):
        ink, ordered = series_ink(index), rows.sort_values("factors")
        axes.plot(ordered["factors"], ordered[predicted], color=TEXT.light, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.get_lines()[-1].set_label("predicted" if index == 0 else f"_predicted, {series}")
        axes.errorbar(
            # Side by side: error bars of several series at one place would cover each other.
            ordered["factors"] + _APART * (index - middle),
            ordered[mean],
            yerr=ordered[deviation].fillna(0.0),
            color=ink.light,
            marker=ink.marker,
            markersize=5,
            linestyle="none",
            capsize=3,
            label=str(series),
            zorder=3,
        )
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.legend(frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor=TEXT.light, loc="upper left")
    return axes
