"""The figures for the library, in files and notebooks: maps, probes, watched trainings, trained networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from normless.doctor import Watch
from normless.doctor.trained import Health
from normless.probes import PROBES, Measurements
from normless.residual import ResidualMap
from normless_lab.plots.health import health_by_layer
from normless_lab.plots.line_plots import lines
from normless_lab.plots.page import description, inline_image, save_png, save_svg, svg_text
from normless_lab.plots.plot import PLOTS, figures_of
from normless_lab.plots.point_plots import heat_map
from normless_lab.plots.structure import blocks_on_trunk

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
