"""Whether gradient summands agree: their ratio against the layer, and the four sums of some layers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import QUIET, scheme_ink
from normless.plots.tables import require_columns

SUMS = {"sum_abs": "Σ|d|", "sum_xy_abs_sum_b": "Σₓ|Σ_b d|", "sum_b_abs_sum_xy": "Σ_b|Σₓ d|", "abs_sum": "|Σd|"}
INDEX_COLUMNS = ("scheme", "order", "input_independence", "predicted_for_random_signs")
SUM_COLUMNS = ("scheme", "order", *SUMS)


def input_independence_against_layer(sums: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw |Σd| / Σ|d| of every layer, and what it is for summands of random signs.

    At 1 all summands of a gradient have one sign, whatever the example and the position; the dotted line is where
    independent ones would be.

    Args:
        sums: a row per scheme and layer: ``scheme``, ``order`` (1, 2, …), ``input_independence`` (0..1) and
            ``predicted_for_random_signs``, as `normless.probes` measures them.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(sums, INDEX_COLUMNS, "Input independence against layer")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    labels = []
    for scheme, rows in sums.groupby("scheme", sort=False):
        ordered, ink = rows.sort_values("order"), scheme_ink(str(scheme))
        measured = ordered["input_independence"]
        axes.plot(ordered["order"], measured, color=ink.light, linewidth=1.4, label=str(scheme))
        last = measured.dropna()
        if len(last):
            labels.append(EndLabel(str(scheme), float(ordered["order"].max()), float(last.iloc[-1]), ink.light))
    chance = sums.drop_duplicates("order").sort_values("order")
    axes.plot(
        chance["order"],
        chance["predicted_for_random_signs"],
        color=QUIET.light,
        linewidth=1,
        linestyle=":",
        drawstyle="steps-mid",
        label="random signs",
    )
    end = float(chance["predicted_for_random_signs"].iloc[-1])
    labels.append(EndLabel("random signs", float(chance["order"].max()), end, QUIET.light))
    axes.set_ylim(top=1.3)
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    name_axes(axes, title="Do gradient summands agree?", across="weight layer", up="|Σd| / Σ|d|")
    label_ends(axes, labels)
    return axes


def gradient_sums_of_layers(sums: pd.DataFrame, layers: Sequence[int], ax: Axes | None = None) -> Axes:
    """Draw the four sums of some layers side by side, a line for each scheme and layer, on a logarithmic axis.

    Where summands agree the line is nearly level; where they cancel it falls, at the sum within which they do.

    Args:
        sums: a row per scheme and layer: ``scheme``, ``order`` and the four sums ``sum_abs``,
            ``sum_xy_abs_sum_b``, ``sum_b_abs_sum_xy``, ``abs_sum`` (of one summand, nats per unit of the weight).
        layers: the numbers, in ``order``, of those to draw.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, or no row is left.
    """
    require_columns(sums, SUM_COLUMNS, "Gradient sums of layers")
    chosen = sums[sums["order"].isin(list(layers))]
    require_columns(chosen, SUM_COLUMNS, f"Gradient sums of the layers {', '.join(map(str, layers))}")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    labels = []
    for row in chosen.sort_values("order").to_dict(orient="records"):
        scheme, ink = str(row["scheme"]), scheme_ink(str(row["scheme"]))
        values = [float(row[name]) for name in SUMS]
        text = f"{scheme} {row['order']}"
        axes.plot(
            range(len(SUMS)), values, color=ink.light, linewidth=1.4, marker=ink.marker, markersize=5, label=text
        )
        if values[-1] > 0:
            labels.append(EndLabel(text, len(SUMS) - 1, values[-1], ink.light))
    axes.set_xticks(range(len(SUMS)), list(SUMS.values()))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    name_axes(axes, title="Gradient of one summand, by what is summed first", across="", up="average over parameters")
    label_ends(axes, labels)
    return axes
