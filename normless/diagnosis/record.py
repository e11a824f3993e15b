"""The numbers of the measured steps of a training: a table, a Parquet file, a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from normless.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Measured steps that are kept; beyond it every second one is dropped, and later ones are kept half as often.
KEPT = 1000
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


@dataclass
class Record:
    """Numbers by quantity and place, of at most `KEPT` measured steps."""

    _rows: list[tuple[int, tuple[tuple[str, str], ...], npt.NDArray[np.float64]]] = field(default_factory=list)
    _count: int = 0
    _stride: int = 1

    def add(self, step: int, quantities: Mapping[str, Mapping[str, float]]) -> None:
        """Keep the numbers of a step, or not where only some steps are kept any more."""
        values = {(name, place): value for name, of in quantities.items() for place, value in of.items()}
        if self._count % self._stride == 0:
            keys = tuple(values)
            # One tuple for all steps with the same layers.
            keys = self._rows[-1][1] if self._rows and self._rows[-1][1] == keys else keys
            self._rows.append((step, keys, np.array(list(values.values()))))
        self._count += 1
        if len(self._rows) > KEPT:
            self._rows, self._stride = self._rows[::2], 2 * self._stride

    def table(self) -> pd.DataFrame:
        """A row per number: `step`, `quantity`, `place` (a module or parameter, empty for all) and `value`."""
        rows = [(step, *key, value) for step, keys, of in self._rows for key, value in zip(keys, of, strict=True)]
        return pd.DataFrame(rows, columns=["step", "quantity", "place", "value"])

    def save(self, path: Path) -> None:
        """Write the table as Parquet."""
        require_extra("train", "Writing Parquet", "pyarrow")
        self.table().to_parquet(path, index=False)

    def plot(self, quantity: str | None, marks: Sequence[int], ax: Axes | None) -> Axes:
        """Draw a quantity: a line over steps with marks, or a map of steps and layers; see `Watch.plot`."""
        table = self.table()
        known = list(table["quantity"].unique())
        quantity = quantity or ("loss" if "loss" in known or not known else "gradient_norm")
        if quantity not in known:
            raise ValueError(f"Expected a measured quantity, {', '.join(known) or 'none yet'}, got {quantity!r}.")
        rows, plots = table[table["quantity"] == quantity], import_module("normless_lab.plots")
        axes: Axes
        if quantity in _LINES:
            frame: dict[str, Any] = {"title": "Training", "y_label": _LINES[quantity], "log": "y?", "x_marks": marks}
            axes = plots.lines(rows, ax, x="step", y="value", **frame)
            return axes
        order = {place: at for at, place in enumerate(rows["place"].unique(), 1)}
        values = rows["value"]
        if quantity not in _SHARES:
            middle = rows.groupby("place")["value"].transform("median")
            positive = (values > 0) & (middle > 0)
            values = (values.where(positive) / middle.where(positive)).map(np.log10)
        rows = rows.assign(layer=rows["place"].map(order), value=values)
        few = (
            {"y_ticks": {at: place or "the network" for place, at in order.items()}, "y_label": ""}
            if len(order) <= 16
            else {}
        )
        unit = "" if quantity in _SHARES else "log₁₀ of the ratio to its median"
        frame = {"title": _MAPS[quantity], "unit": unit, "y_label": "in order of execution", "x_marks": marks, **few}
        axes = plots.heat_map(rows, ax, x="step", y="layer", value="value", signed=quantity not in _SHARES, **frame)
        return axes
