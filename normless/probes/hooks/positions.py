"""The positions of layers in a residual network, and tables by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import nn

from normless.residual import Layer, ResidualMap
from normless.residual.blocks import Kind


@dataclass(frozen=True)
class LayerPosition:
    """The position of a layer in execution order.

    Weight layers are counted as in the papers: the stem of a ResNet-110 is layer 1, its classifier layer 110.

    Attributes:
        layer: qualified name of the module.
        order: number among the layers of its kind in execution order, from 1.
        block: name of its outermost block, None outside blocks.
    """

    layer: str
    order: int | None
    block: str | None

    def columns(self) -> dict[str, Any]:
        """The first columns of a table of layers."""
        return {"order": self.order, "layer": self.layer, "block": self.block}


def layer_positions(residual_map: ResidualMap, kind: Kind = "weight") -> dict[Layer, LayerPosition]:
    """The position of every layer of one kind; a module that runs several times has one for each call."""
    blocks = _blocks(residual_map)
    layers = (layer for layer in residual_map.layers() if layer.kind == kind)
    return {layer: LayerPosition(layer.path, order, blocks.get(layer)) for order, layer in enumerate(layers, 1)}


def parameter_positions(model: nn.Module, residual_map: ResidualMap) -> dict[str, LayerPosition]:
    """The position of the first layer that reads each parameter, by the parameter's qualified name.

    `order` is None where that is no weight layer; a parameter that no layer reads is at the module that owns it.
    """
    blocks, weights = _blocks(residual_map), layer_positions(residual_map)
    readers: dict[str, LayerPosition] = {}
    for layer in residual_map.layers():
        position = weights.get(layer, LayerPosition(layer.path, None, blocks.get(layer)))
        for name in layer.parameters:
            readers.setdefault(name, position)
    names = (name for name, _ in model.named_parameters())
    return {name: readers.get(name, LayerPosition(name.rpartition(".")[0], None, None)) for name in names}


def layer_table(rows: Iterable[Mapping[str, Any] | pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Rows, or tables of several rows each, as one table with these columns; `order` is a nullable integer."""
    rows = list(rows)
    tables = [part for part in rows if isinstance(part, pd.DataFrame)]
    table = (
        pd.concat(tables, ignore_index=True)[list(columns)] if tables else pd.DataFrame(rows, columns=list(columns))
    )
    return table[list(columns)].astype({"order": "Int64"})


def _blocks(residual_map: ResidualMap) -> dict[Layer, str]:
    return {layer: block.name for block in residual_map.blocks for layer in block.layers}
