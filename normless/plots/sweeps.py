"""Optima of sweeps against depth or batch size: what is reached, and the learning rate at which it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import PAPER, QUIET, SCHEME_INKS, Ink, scheme_ink
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

_NUMBER_OF_INKS = 8


def inks_of(schemes: Mapping[str, str]) -> dict[str, Ink]:
    """A colour and marker for each name, all different as far as there are enough: its scheme's if it is the first.

    Args:
        schemes: the text of the scheme that each name stands for.
    """
    chosen: dict[str, Ink] = {}
    for name, scheme in schemes.items():
        ink = scheme_ink(scheme)
        if ink not in chosen.values():
            chosen[name] = ink
    others = [ink for ink in map(series_ink, range(_NUMBER_OF_INKS)) if ink not in chosen.values()]
    others += [ink for ink in SCHEME_INKS.values() if ink not in chosen.values() and ink not in others]
    rest = [name for name in schemes if name not in chosen]
    return chosen | {name: others[place % len(others)] for place, name in enumerate(rest)}


def optimum_against(
    optima: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    across: str,
    inks: Mapping[str, Ink],
    title: str,
    up: str,
) -> Axes:
    """Draw what is reached at the optimal learning rate, a named line per series with its deviations as bars.

    A hollow marker is an optimum that is no training: too few of the runs trained at any rate.

    Args:
        optima: a row per combination: the columns `series` and `across` (a number), `mean`, `deviation` (NaN of a
            single run) and `trainable`. A mean that is not finite leaves a gap.
        ax: where to draw; a new figure without it.
        series: the column of the names of the lines.
        across: the column of the positions, such as depth or batch_size; drawn in logarithmic steps.
        inks: of each name.
        title: of the figure.
        up: what the means are, with their unit.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(optima, (series, across, "mean", "deviation", "trainable"), "The figure of optima")
    axes = new_axes() if ax is None else style_axes(ax)
    _positions(axes, optima[across])
    labels: list[EndLabel] = []
    for name, rows in optima.groupby(series, sort=False):
        ordered = rows.sort_values(across)
        ink = inks[str(name)]
        values = ordered["mean"].astype(float).where(np.isfinite(ordered["mean"].astype(float)))
        bars = ordered["deviation"].astype(float).fillna(0.0)
        _line(axes, ordered[across], values, (bars, bars), ink, str(name), ordered["trainable"].astype(bool))
        labels += _end(str(name), ordered[across], values, ink)
    name_axes(axes, title=title, across=_in_words(across), up=up)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    # Names stand at the height of their lines' ends, which moves until the limits are set.
    axes.set_ylim(*axes.get_ylim())
    label_ends(axes, labels)
    return axes


def rate_against(
    optima: pd.DataFrame,
    ax: Axes | None = None,
    *,
    series: str,
    across: str,
    inks: Mapping[str, Ink],
    title: str,
    proportional: bool = False,
) -> Axes:
    """Draw the optimal learning rate, a named line per series; bars reach over all rates within one deviation of it.

    Args:
        optima: a row per combination: the columns `series` and `across` (a number), `rate`, `rate_low`, `rate_high`
            and `trainable`. What could not be trained is left out.
        ax: where to draw; a new figure without it.
        series: the column of the names of the lines.
        across: the column of the positions; drawn in logarithmic steps.
        inks: of each name.
        title: of the figure.
        proportional: draw a dashed line of rates proportional to the position, through the least of them.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(optima, (series, across, "rate", "rate_low", "rate_high", "trainable"), "The figure of rates")
    axes = new_axes() if ax is None else style_axes(ax)
    _positions(axes, optima[across])
    labels: list[EndLabel] = []
    exponents = optima.assign(**{name: np.log2(optima[name].astype(float)) for name in _RATES})
    trained = exponents[exponents["trainable"].astype(bool)]
    if proportional and not trained.empty:
        _proportional(axes, trained[across], trained["rate"])
    for name, rows in trained.groupby(series, sort=False):
        ordered = rows.sort_values(across)
        ink, rate = inks[str(name)], ordered["rate"]
        bars = (rate - ordered["rate_low"], ordered["rate_high"] - rate)
        _line(axes, ordered[across], rate, bars, ink, str(name), pd.Series(True, index=ordered.index))
        labels += _end(str(name), ordered[across], rate, ink)
    name_axes(axes, title=title, across=_in_words(across), up="optimal learning rate")
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda exponent, _: power_of_two(exponent)))
    # Names stand at the height of their lines' ends, which moves until the limits are set.
    low, high = axes.get_ylim()
    # Where there is one rate alone, its neighbours give the axis its scale.
    axes.set_ylim((low, high) if high - low > 1 else (round((low + high) / 2) - 1.2, round((low + high) / 2) + 1.2))
    label_ends(axes, labels)
    return axes


_RATES = ("rate", "rate_low", "rate_high")


def power_of_two(exponent: float) -> str:
    """A tick label 2ᵏ for its exponent."""
    return "2" + f"{exponent:g}".translate(str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·"))


def _positions(axes: Axes, values: pd.Series) -> None:
    """A logarithmic axis with a tick at each position, or at some of them where they are many."""
    places = sorted({float(value) for value in values})
    axes.set_xscale("log", base=2)
    axes.set_xlim(places[0] / 1.25, places[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(places[:: -(-len(places) // 8)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _line(
    axes: Axes,
    across: pd.Series,
    values: pd.Series,
    bars: tuple[pd.Series, pd.Series],
    ink: Ink,
    name: str,
    trained: pd.Series,
) -> None:
    """A line with bars below and above its points; the points of what did not train are hollow."""
    style = {"color": ink.light, "linewidth": 1.6, "markersize": 5.5, "zorder": 3}
    axes.errorbar(across, values, yerr=bars, marker=ink.marker, capsize=2.5, elinewidth=1, label=name, **style)  # type: ignore[arg-type]
    axes.plot(
        across[~trained],
        values[~trained],
        linestyle="none",
        marker=ink.marker,
        markersize=5.5,
        markerfacecolor=PAPER.light,
        markeredgecolor=ink.light,
        markeredgewidth=1.4,
        label=f"{name}, not trained",
        zorder=4,
    )


def _end(name: str, across: pd.Series, values: pd.Series, ink: Ink) -> Sequence[EndLabel]:
    """The name at the last point there is, if there is any."""
    known = values[np.isfinite(values)]
    if known.empty:
        return ()
    last = known.index[-1]
    return (EndLabel(name.replace("_", " "), float(across[last]), float(known[last]), ink.light),)


def _proportional(axes: Axes, across: pd.Series, exponents: pd.Series) -> None:
    """rate ∝ position, through the least optimal rate of the first position."""
    first, last = float(across.min()), float(across.max())
    start = float(exponents[across == first].min())
    end = start + math.log2(last / first)
    axes.plot([first, last], [start, end], color=QUIET.light, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
    axes.annotate(
        "∝ batch size",
        xy=(first, start),
        xytext=(4, -3),
        textcoords="offset points",
        color=QUIET.light,
        fontsize=SMALL_FONT_SIZE,
        verticalalignment="top",
    )


def _in_words(column: str) -> str:
    return {"depth": "depth (layers)", "batch_size": "batch size"}.get(column, column.replace("_", " "))
