"""The first step of γ's direction against the size of γ, on logarithmic axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import QUIET
from normless.plots.structure import ROLE_INKS
from normless.plots.tables import require_columns

COLUMNS = ("varied", "scale", "layer", "role", "update")


def gamma_update_against_scale(updates: pd.DataFrame, ax: Axes | None = None, *, varied: str | None = None) -> Axes:
    """Draw how far γ's direction moves in the first step against the factor on γ, one colour per role.

    Figure 6 of Kim et al. Each norm's steps are shown over that at its smallest factor, so that all start at one
    point; the slope -2 of a scale-invariant γ is dotted.

    Args:
        updates: the table of `normless_papers.probes.gamma_rate.gamma_updates`.
        ax: where to draw; a new figure without it.
        varied: whose γ were multiplied together, a role or ``all``; without it, those of each role by themselves.

    Raises:
        ValueError: a column is missing, the table is empty, or nothing of that name was varied.
    """
    require_columns(updates, COLUMNS, "γ's first step against its size")
    alone = updates["varied"] == updates["role"]
    shown = updates[alone if varied is None else updates["varied"] == varied]
    if shown.empty:
        raise ValueError(f"Nothing was varied as {varied!r}; the table has {', '.join(updates['varied'].unique())}.")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    scales = np.sort(shown["scale"].unique())
    axes.plot(
        scales,
        (scales / scales[0]) ** -2,
        color=QUIET.light,
        linewidth=1.2,
        linestyle=":",
        label="slope −2",
        zorder=5,
    )
    for role, table in shown.groupby("role", sort=False):
        ink = ROLE_INKS[f"γ {role}"]
        for index, (_, rows) in enumerate(table.groupby("layer", sort=False)):
            steps = rows.sort_values("scale")
            relative = steps["update"] / steps["update"].iloc[0]
            label = f"γ {role}" if index == 0 else "_same"
            axes.plot(
                steps["scale"], relative, color=ink.light, marker=ink.marker, markersize=4, linewidth=1, label=label
            )
    axes.legend(frameon=False, fontsize=SMALL_FONT_SIZE)
    axes.xaxis.set_major_formatter(lambda scale, _: f"{scale:g}")
    which = "one role's γ at a time" if varied is None else "all γ" if varied == "all" else f"γ {varied}"
    name_axes(
        axes,
        title=f"First step of γ's direction, {which}",
        across="factor on γ",
        up=f"step, relative to that at factor {scales[0]:g}",
    )
    return axes
