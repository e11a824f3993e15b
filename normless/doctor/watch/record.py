"""The numbers of the measured steps of a training: a table, a Parquet file, a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from normless.extras import require_extra
from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The number of measured steps to keep; beyond it, every second one is dropped, and later ones are kept half as often.
KEPT = 1000


@dataclass
class Record:
    """The numbers of at most `KEPT` measured steps, by quantity and place."""

    _rows: list[tuple[int, tuple[tuple[str, str], ...], npt.NDArray[np.float64]]] = field(default_factory=list)
    _count: int = 0
    _stride: int = 1

    def add(self, step: int, quantities: Mapping[str, Mapping[str, float]]) -> None:
        """Add the numbers of a step, unless the stride skips it."""
        values = {(name, place): value for name, of in quantities.items() for place, value in of.items()}
        if self._count % self._stride == 0:
            keys = tuple(values)
            # Steps with the same layers share one tuple of keys.
            keys = self._rows[-1][1] if self._rows and self._rows[-1][1] == keys else keys
            self._rows.append((step, keys, np.array(list(values.values()))))
        self._count += 1
        if len(self._rows) > KEPT:
            self._rows, self._stride = self._rows[::2], 2 * self._stride

    def table(self) -> pd.DataFrame:
        """Return a row per number: `step`, `quantity`, `place` (a module or parameter, empty for all) and `value`."""
        rows = [(step, *key, value) for step, keys, of in self._rows for key, value in zip(keys, of, strict=True)]
        return pd.DataFrame(rows, columns=["step", "quantity", "place", "value"])

    def save(self, path: Path) -> None:
        """Write the table as Parquet."""
        require_extra("lab", "Writing Parquet", "pyarrow")
        self.table().to_parquet(path, index=False)

    def plot(self, quantity: str | None, marks: Sequence[int], ax: Axes | None) -> Axes:
        """Draw a quantity as a line over steps with marks, or as a map of steps and layers; see `Watch.plot`."""
        axes: Axes = EXTENSIONS["training_figure"](self.table(), quantity, marks, ax)
        return axes
