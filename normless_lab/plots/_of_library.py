"""The figures for the library, in files and notebooks: maps, probes, watched trainings, trained networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from normless.doctor import QUANTITIES, Health, Watch
from normless.probes import PROBES, Measurements
from normless.residual import ResidualMap
from normless_lab.plots._frame import new_panels, title_axes
from normless_lab.plots._line_plots import lines
from normless_lab.plots._page import description, inline_image, save_png, save_svg, svg_text
from normless_lab.plots._palette import SCHEME_INKS
from normless_lab.plots._plot import PLOTS, figures_of
from normless_lab.plots._point_plots import heat_map, points
from normless_lab.plots._structure import blocks_on_trunk

if TYPE_CHECKING:
    import pandas as pd

# Quantities of the whole network, by their axis' label, and those of layers, by their title.
_LINES = {"loss": "loss", "gradient_norm": "‖∂L/∂w‖ of all parameters"}
_MAPS = {
    "gradient": "Norms of gradients",
    "output": "Sizes of outputs, √E[y²]",
    "update": "Updates, ‖Δw‖/‖w‖",
    "lost": "Elements of weights that the update left as they were",
    "multiplier": "Multipliers, |α|",
    "off": "Units that are 0 for all examples",
}
_SHARES = ("multiplier", "off", "lost")
# Layers that are named on the axis; more are numbered.
_NAMED = 16


# Of layers by their kind.
_KINDS = {"norm": "batch_norm", "weight": "skipinit", "activation": "fixup", "attention": "rezero", "block": "lsuv"}
_BEYOND = "beyond the limit"


class Figures(list[Axes]):
    """The Axes of several figures; a notebook shows them as images."""

    def _repr_html_(self) -> str:
        return "".join(inline_image(svg_text(axes), description(axes)) for axes in self)


def draw(measured: Measurements | ResidualMap | Watch | Health, scheme: str) -> Figures:
    """Draw the figures of a result of the library; see `normless.plot`."""
    if isinstance(measured, ResidualMap):
        return Figures([blocks_on_trunk(measured)])
    if isinstance(measured, Watch):
        return Figures([measured.plot()])
    if isinstance(measured, Health):
        return Figures([health_by_layer(measured)])
    if not isinstance(measured, Measurements):
        given = type(measured).__name__
        known = "nl.probe, nl.residual_map, nl.watch or nl.diagnose_trained"
        raise ValueError(f"Expected the result of {known}, got {given}.")
    probes = {name: PROBES[name] for name in measured if name in PROBES}
    figures = Figures(axes for *_, axes in figures_of(measured.tables, scheme, probes))
    if not figures:
        without = ", ".join(measured) or "no probe"
        raise ValueError(f"Expected a probe that has a plot and rows ({', '.join(PLOTS)}), got {without}.")
    return figures


def draw_map(result: ResidualMap | Health, title: str, path: Path) -> None:
    """Draw a residual map, or the health of a network, to a file in the format of its suffix: SVG, PNG or PDF."""
    if isinstance(result, ResidualMap):
        axes = blocks_on_trunk(result, title=title)
    else:
        axes = health_by_layer(result, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".svg":
        save_svg(axes, path)
    elif path.suffix.lower() == ".png":
        save_png(axes, path)
    else:
        drawn = axes.get_figure(root=True)
        assert drawn is not None
        drawn.savefig(path, format="pdf", metadata={"CreationDate": None})


def health_by_layer(report: Health, *, title: str = "Health by layer") -> Axes:
    """Draw the quantities of a report that are not zero in all layers, and return the uppermost panel.

    Limits are dotted lines; layers beyond one have the colour of a fault, and the worst has its name.
    """
    table = report.table.reset_index(drop=True)
    shown = [name for name in QUANTITIES if (table[name].fillna(0) != 0).any()]
    panels = new_panels(1, max(len(shown), 1), width=8.6, height=1.9)
    inks = {kind: SCHEME_INKS[scheme] for kind, scheme in _KINDS.items()} | {_BEYOND: SCHEME_INKS["none"]}
    for axes, name in zip(panels, shown, strict=False):
        quantity, values = QUANTITIES[name], table[name].astype(float)
        limit = np.nan if quantity.limit is None else quantity.limit
        beyond = values < limit if quantity.below else values >= limit
        rows = table.assign(order=table.index + 1, kind=table["kind"].mask(beyond, _BEYOND))[values.notna()]
        log = "y" if quantity.log and (values > 0).any() else ""
        frame: dict[str, Any] = {"title": "", "x_label": "", "y_label": quantity.words, "log": log, "inks": inks}
        # A limit far from the values would squeeze them into a line.
        near = quantity.limit is not None and limit <= 30 * values.max()
        frame |= {"y_marks": [limit] if near else [], "x_limits": (0, len(table) + 1)}
        points(rows, axes, x="order", y=name, by="kind", names="legend" if axes is panels[0] else "none", **frame)
        if beyond.any():
            worst: Any = values[beyond].idxmin() if quantity.below else values[beyond].idxmax()
            side = "right" if worst > len(table) / 2 else "left"
            axes.annotate(str(table["layer"][worst]), (worst + 1, values[worst]), ha=side, fontsize=8)
    count = len(report.findings)
    title_axes(panels[0], f"{title}: {count} finding{'s' * (count != 1)}\n")
    panels[-1].set_xlabel("layer, in order of execution")
    return panels[0]


def draw_probes(
    tables: Mapping[str, pd.DataFrame], scheme: str, probes: Mapping[str, object], folder: Path, kind: str = "svg"
) -> list[Path]:
    """Draw the tables of probes that have a plot to files in a folder, SVG or PNG, and return their paths."""
    written = []
    for name, _, axes in list(figures_of(tables, scheme, probes)):
        written.append(folder / f"{name}.{kind}")
        save_png(axes, written[-1]) if kind == "png" else save_svg(axes, written[-1])
    return written


def draw_training(quantities: pd.DataFrame, quantity: str | None, marks: Sequence[int], ax: Axes | None) -> Axes:
    """Draw a quantity of a watched training: a line over steps with marks, or a map of steps and layers."""
    known = list(quantities["quantity"].unique())
    quantity = quantity or ("loss" if "loss" in known or not known else "gradient_norm")
    if quantity not in known:
        raise ValueError(f"Expected a measured quantity, {', '.join(known) or 'none yet'}, got {quantity!r}.")
    rows = quantities[quantities["quantity"] == quantity]
    if quantity in _LINES:
        return lines(
            rows, ax, x="step", y="value", title="Training", y_label=_LINES[quantity], log="y?", x_marks=marks
        )
    order = {place: at for at, place in enumerate(rows["place"].unique(), 1)}
    values = rows["value"]
    if quantity not in _SHARES:
        middle = rows.groupby("place")["value"].transform("median")
        positive = (values > 0) & (middle > 0)
        values = (values.where(positive) / middle.where(positive)).map(np.log10)
    rows = rows.assign(layer=rows["place"].map(order), value=values)
    frame: dict[str, Any] = {"title": _MAPS[quantity], "y_label": "in order of execution", "x_marks": marks}
    if len(order) <= _NAMED:
        frame |= {"y_ticks": {at: place or "the network" for place, at in order.items()}, "y_label": ""}
    unit = "" if quantity in _SHARES else "log₁₀ of the ratio to its median"
    return heat_map(rows, ax, x="step", y="layer", value="value", signed=quantity not in _SHARES, unit=unit, **frame)
