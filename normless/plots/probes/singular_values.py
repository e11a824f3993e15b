"""Singular values of products of random matrices: histograms, their limiting density, its parametrization."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from normless.plots.axes import SMALL_FONT_SIZE, name_axes, new_axes, style_axes
from normless.plots.palette import TEXT
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

Of: TypeAlias = Literal["squares", "values"]
_NAMES = {"squares": "squared singular value", "values": "singular value"}


def singular_value_histogram(
    values: pd.DataFrame,
    law: pd.DataFrame | None = None,
    ax: Axes | None = None,
    *,
    of: Of = "values",
    bins: int = 50,
) -> Axes:
    """Draw the histograms of all runs over each other, one colour per number of factors, the limiting density on top.

    This is figure 8 of "Understanding batch normalization" (Bjorck et al. 2018) with theorem 1 over it. Densities are
    on a logarithmic axis from a tenth of the least bar's height, one value in one run, to twice the highest bar.

    Args:
        values: a row per singular value: ``factors``, ``run``, ``unit_squared`` (the squared value for entries of
            variance 1/N).
        law: the density's curve per number of factors: ``factors``, ``of``, ``x``, ``density``.
        ax: where to draw; a new figure without it.
        of: whether to draw squared singular values or singular values; rows of ``law`` of the other are left out.
        bins: bars between 0 and the largest value.

    Raises:
        ValueError: a column is missing or a table is empty.
    """
    require_columns(values, ("factors", "run", "unit_squared"), "The histogram of singular values")
    axes = new_axes() if ax is None else style_axes(ax)
    shown = np.sqrt(values["unit_squared"]) if of == "values" else values["unit_squared"]
    edges = np.linspace(0, float(shown.max()) * 1.02, bins + 1)
    lowest, highest = np.inf, 0.0
    for index, (factors, rows) in enumerate(values.groupby("factors", sort=True)):
        ink = series_ink(index)
        for position, (_, run) in enumerate(rows.groupby("run", sort=True)):
            heights, _ = np.histogram(shown[run.index], edges, density=True)
            lowest, highest = min(lowest, float(heights[heights > 0].min())), max(highest, float(heights.max()))
            label = f"{factors} factor{'s' * (factors != 1)}" if position == 0 else None
            axes.stairs(heights, edges, color=ink.light, alpha=0.45, linewidth=1, label=label, baseline=None)
    if law is not None:
        _draw_law(axes, law, of)
    axes.set_xlim(0, float(edges[-1]))
    axes.set_yscale("log")
    axes.set_ylim(lowest / 10, 2 * highest)
    axes.minorticks_off()
    _legend(axes)
    name_axes(axes, title="Products of random matrices", across=_across(of), up="density")
    return axes


def limiting_density(law: pd.DataFrame, ax: Axes | None = None, *, of: Of = "squares") -> Axes:
    """Draw the limiting density for several numbers of factors, both axes logarithmic (figure 10).

    Args:
        law: the curve per number of factors: ``factors``, ``of``, ``x``, ``density``.
        ax: where to draw; a new figure without it.
        of: whose density to draw, squared singular values' or singular values'.

    Raises:
        ValueError: a column is missing, or there is no row of the kind asked for.
    """
    require_columns(law, ("factors", "of", "x", "density"), "The limiting density")
    axes = new_axes() if ax is None else style_axes(ax)
    chosen = law[law["of"] == of]
    require_columns(chosen, ("factors",), f"The limiting density of {of}")
    for index, (factors, rows) in enumerate(chosen.groupby("factors", sort=True)):
        axes.plot(rows["x"], rows["density"], color=series_ink(index).light, linewidth=1.8, label=_count(factors))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1e-4, 1.5 * float(chosen["x"].max()))
    visible = chosen[chosen["x"] >= 1e-4]
    axes.set_ylim(1e-3, 2 * float(visible["density"].max()))
    axes.minorticks_off()
    _legend(axes)
    name_axes(axes, title="Limiting density", across=_across(of), up="density")
    return axes


def density_parametrization(law: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the squared singular value x against the angle φ that parametrizes the density (figure 9).

    Args:
        law: the curve per number of factors: ``factors``, ``of``, ``angle`` (radians), ``x``; rows of ``of``
            "squares" are drawn.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing, or there is no row of squares.
    """
    require_columns(law, ("factors", "of", "angle", "x"), "The parametrization of the density")
    axes = new_axes() if ax is None else style_axes(ax)
    chosen = law[law["of"] == "squares"]
    require_columns(chosen, ("factors",), "The parametrization of the density of squares")
    for index, (factors, rows) in enumerate(chosen.groupby("factors", sort=True)):
        axes.plot(rows["angle"], rows["x"], color=series_ink(index).light, linewidth=1.8, label=_count(factors))
    axes.set_xlim(0, 1.02 * float(chosen["angle"].max()))
    axes.set_ylim(0, 1.05 * float(chosen["x"].max()))
    _legend(axes)
    name_axes(axes, title="Parametrization x(φ)", across="angle φ (radians)", up="squared singular value x")
    return axes


def _draw_law(axes: Axes, law: pd.DataFrame, of: Of) -> None:
    require_columns(law, ("factors", "of", "x", "density"), "The limiting density")
    for index, (factors, rows) in enumerate(law[law["of"] == of].groupby("factors", sort=True)):
        label = "limiting density" if index == 0 else f"_limiting density, {factors}"
        axes.plot(rows["x"], rows["density"], color=TEXT.light, linewidth=1.2, linestyle=(0, (4, 2)), label=label)


def _count(factors: object) -> str:
    return f"M = {factors}"


def _across(of: Of) -> str:
    return f"{_NAMES[of]} (entries of variance 1/N)"


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=SMALL_FONT_SIZE, labelcolor=TEXT.light, loc="upper right")
