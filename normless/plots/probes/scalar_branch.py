"""How far one step moves a scalar branch, against the number of branches."""

from __future__ import annotations

from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from normless.plots.axes import name_axes, new_axes, style_axes
from normless.plots.labels import EndLabel, label_ends
from normless.plots.palette import PAPER
from normless.plots.probes.series import series_ink
from normless.plots.tables import require_columns

_NAMES = MappingProxyType({"equal": "all equal", "zero_last": "last is 0", "ones": "all 1"})
_COLUMNS = ("option", "layers", "blocks", "learning_rate", "update", "predicted_update")


def scalar_branch_updates(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw |ΔF|/η against L, both logarithmic: exact steps as points, the first-order formula as lines.

    Lines that fall as 1/L are of initializations under which L branches together move by Θ(η) (Fixup, theorem 4).

    Args:
        table: a row per initialization, number of layers m and of branches L: ``option``, ``layers``, ``blocks``,
            ``learning_rate``, ``update``, ``predicted_update``.
        ax: where to draw; a new figure without it.

    Raises:
        ValueError: a column is missing or the table is empty.
    """
    require_columns(table, _COLUMNS, "Updates of a scalar branch")
    axes = new_axes() if ax is None else style_axes(ax)
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = table[["update", "predicted_update"]].abs().div(table["learning_rate"], axis=0).to_numpy(float)
    axes.set_ylim(float(sizes.min()) / 2, float(sizes.max()) * 2)
    axes.set_xlim(float(table["blocks"].min()) / 1.3, float(table["blocks"].max()) * 1.3)
    ends: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for number, (option, rows) in enumerate(table.groupby("option", sort=False)):
        ink = series_ink(number)
        for layers, curve in rows.groupby("layers", sort=True):
            ordered = curve.sort_values("blocks")
            exact = ordered["update"].abs() / ordered["learning_rate"]
            predicted = ordered["predicted_update"].abs() / ordered["learning_rate"]
            name = f"{_NAMES.get(str(option), str(option))}, m = {layers}"
            axes.plot(ordered["blocks"], predicted, color=ink.light, linewidth=1.4, label=f"{name}, first order")
            axes.plot(
                ordered["blocks"],
                exact,
                linestyle="none",
                marker=ink.marker,
                markersize=4.5,
                markerfacecolor=PAPER.light,
                markeredgecolor=ink.light,
                label=f"{name}, exact",
            )
            place = (_NAMES.get(str(option), str(option)), ink.light)
            ends.setdefault(place, []).append((int(str(layers)), float(predicted.iloc[-1])))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10))
        axis.set_minor_locator(NullLocator())
    name_axes(axes, title="One step of a scalar branch", across="number of branches L", up="|ΔF| / η")
    last = float(table["blocks"].max())
    label_ends(axes, [label for place, curves in ends.items() for label in _labels(*place, curves, last)])
    return axes


def _labels(name: str, colour: str, curves: list[tuple[int, float]], across: float) -> list[EndLabel]:
    """One label per height: curves that end at the same one, to 1%, share it."""
    labels: list[EndLabel] = []
    shared: list[int] = []
    for layers, height in sorted(curves, key=lambda curve: (curve[1], curve[0])):
        if labels and height <= 1.01 * labels[-1].y:
            shared.append(layers)
            labels.pop()
        else:
            shared = [layers]
        counts = ", ".join(str(count) for count in shared)
        labels.append(EndLabel(f"{name}, m = {counts}", across, height, colour))
    return labels
