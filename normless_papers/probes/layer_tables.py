"""Base classes of watchers of weight layers, which add rows of a table for each layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from torch import Tensor, nn

from normless.probes import LayerPosition, Setting, Watcher, layer_positions, layer_table
from normless.residual import Layer, Unresolved
from normless_papers.probes.owners import require_known
from normless_papers.probes.summands import Summands, UnknownSummandsError, summands_of

LAYER_COLUMNS = ("order", "layer", "block", "call")
SUM_COLUMNS = ("sum_abs", "sum_b_abs_sum_xy", "sum_xy_abs_sum_b", "abs_sum")


def by_layer(table: pd.DataFrame, numbers: Callable[[pd.DataFrame], Mapping[str, Any]]) -> pd.DataFrame:
    """Compute a row of numbers per layer and call, in execution order."""
    keys = ["order", "layer", "call"]
    groups = table.groupby(keys)
    return pd.DataFrame([dict(zip(keys, key, strict=True)) | dict(numbers(rows)) for key, rows in groups])


@dataclass
class LayerTables(Watcher):
    """A watcher of some weight layers of a network; a subclass adds rows with `add`.

    Args:
        layers: paths of the weight layers to measure; None for all.

    Raises:
        ValueError: a path is not that of a weight layer; raised when the pass starts.
    """

    columns: ClassVar[tuple[str, ...]] = ()

    layers: Collection[str] | None = None
    _places: dict[Layer, LayerPosition] = field(default_factory=dict, init=False, repr=False)
    # Rows, or tables of several rows.
    _parts: list[dict[str, Any] | pd.DataFrame] = field(default_factory=list, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        super().on_start(setting)
        places = layer_positions(setting.map)
        paths = dict.fromkeys(layer.path for layer in places)
        require_known(self.layers, paths, "weight layer")
        chosen = paths if self.layers is None else self.layers
        self._places = {layer: place for layer, place in places.items() if layer.path in chosen}
        self._parts = []

    def wants(self, layer: Layer) -> bool:
        return layer in self._places

    def add(self, layer: Layer, numbers: Mapping[str, Any]) -> None:
        """Add a layer's row of numbers, or a row per element of its arrays."""
        columns = self._places[layer].columns() | {"call": layer.call} | dict(numbers)
        rows = any(np.ndim(value) for value in numbers.values())
        self._parts.append(pd.DataFrame(columns) if rows else columns)

    def table(self) -> pd.DataFrame:
        """Return all rows, layers in execution order."""
        table = layer_table(self._parts, self.columns)
        return table.sort_values("order", kind="stable", ignore_index=True)


@dataclass
class SummandTables(LayerTables):
    """A watcher of the summands of some layers' weight gradients; a subclass defines `on_summands`.

    A layer whose summands are unknown is listed in `missed` with the reason.
    """

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        if layer not in self._places:
            return
        try:
            summands = summands_of(module, x, gradient)
        except UnknownSummandsError as reason:
            self.missed.append(Unresolved(layer.path, str(reason)))
        else:
            self.on_summands(layer, module, summands)

    def on_summands(self, layer: Layer, module: nn.Module, summands: Summands) -> None:
        """Receive the summands of a layer's weight gradient."""
        raise NotImplementedError
