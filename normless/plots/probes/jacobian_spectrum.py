"""The singular values of Jacobians of networks, in order."""

from __future__ import annotations

from math import log10

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.probes.series import power_of_ten, series_ink
from normless.plots.tables import require_columns


def jacobian_spectrum_by_rank(spectra: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw singular value (logarithmic) against its rank, one line per spectrum, one colour per series.

    Args:
        spectra: a row per singular value: ``spectrum``, ``index`` (0 the largest), ``singular_value``. A column
            ``series``, where there is one, names the network or stack, at the end of its
            lines. Values of 0 have no place and are left out.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, or there is no singular value above 0.
    """
    columns = ("spectrum", "index", "singular_value")
    require_columns(spectra, columns, "The spectrum of a Jacobian")
    positive = spectra[spectra["singular_value"] > 0]
    require_columns(positive, columns, "The spectrum of a Jacobian, values of 0 left out,")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    values, ranks = positive["singular_value"], positive["index"] + 1
    axes.set_ylim(float(values.min()) / 1.3, float(values.max()) * 1.3)
    axes.set_xlim(1, max(float(ranks.max()), 2))
    named = positive if "series" in positive else positive.assign(series="")
    labels = []
    for number, (series, rows) in enumerate(named.groupby("series", sort=False)):
        ink = series_ink(number)
        for position, (_, spectrum) in enumerate(rows.groupby("spectrum", sort=True)):
            ordered = spectrum.sort_values("index")
            label = f"_{series}, {position}" if position or not series else str(series)
            axes.plot(ordered["index"] + 1, ordered["singular_value"], color=ink.light, linewidth=1.2, label=label)
        last = rows[rows["index"] == rows["index"].max()]["singular_value"]
        labels.append(EndLabel(str(series), float(rows["index"].max()) + 1, float(last.median()), ink.light))
    decades = log10(float(values.max() / values.min()))
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0), numticks=10))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick if decades <= 2 else _power))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    name_axes(axes, title="Spectrum of the Jacobian", across="rank", up="singular value")
    if "series" in positive:
        label_ends(axes, labels)
    return axes


def _tick(value: float, _: object) -> str:
    return f"{value:g}"


def _power(value: float, _: object) -> str:
    return power_of_ten(round(log10(value)))
