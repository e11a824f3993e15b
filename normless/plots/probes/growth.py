"""How much the signal has grown on the way through the blocks, beside the law of its growth."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import QUIET, scheme_ink
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns


def growth_against_block(
    growth: pd.DataFrame, ax: Axes | None = None, *, up: str = "second moment / that of x₀"
) -> Axes:
    """Draw the growth of the signal (logarithmic) against the block: hollow points measured, dashed lines the law.

    Args:
        growth: a row per line and block: ``scheme`` or another name of the line, ``block`` (0..L), ``growth`` (a
            gap where it is not above 0) and ``law``, NaN where there is none.
        ax: where to draw; a new figure without it.
        up: what has grown, over what.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(growth, ("scheme", "block", "growth", "law"), "Growth against block")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_yscale("log")
    labels = []
    for number, (name, rows) in enumerate(growth.groupby("scheme", sort=False)):
        known_scheme = str(name).isidentifier()
        ink = scheme_ink(str(name)) if known_scheme else series_ink(number)
        ordered = rows.sort_values("block")
        positive = ordered["growth"].where((ordered["growth"] > 0) & (ordered["growth"] < float("inf")))
        law = ordered["law"].where(ordered["law"] > 0)
        axes.plot(
            ordered["block"], law, color=QUIET.light, linewidth=1.2, linestyle=(0, (4, 3)), label=f"{name}, law"
        )
        axes.plot(
            ordered["block"],
            positive,
            linestyle="none",
            marker=ink.marker,
            markersize=4.5,
            markerfacecolor="none",
            markeredgecolor=ink.light,
            markevery=max(1, len(ordered) // 24),
            label=f"{name}, measured",
        )
        last = positive.last_valid_index()
        if last is not None:
            labels.append(EndLabel(str(name), float(ordered["block"][last]), float(positive[last]), ink.light))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_minor_locator(NullLocator())
    across = "block; dashed: the law" if growth["law"].notna().any() else "block"
    name_axes(axes, title="Growth at initialization", across=across, up=up)
    low, high = axes.get_ylim()
    # A decade on both sides of a level line says that it is one; names are placed by limits that no longer move.
    room = 10 if high < 100 * low else 1
    axes.set_ylim(low / room, high * room)
    label_ends(axes, labels)
    return axes
