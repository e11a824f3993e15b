"""Where layers and parameters are in a residual network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from torch import nn

from normless.residual import Layer, ResidualMap
from normless.residual.blocks import Kind

NetworkPart = Literal["stem", "shared", "branch", "skip", "after_sum", "trunk", "head", "other"]


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


@dataclass(frozen=True)
class ParameterOwner:
    """The layer that reads a parameter, and the part of the network it belongs to.

    Attributes:
        layer: path of the layer, empty where no layer of the map reads the parameter.
        place: the part of the network.
        block: number of the block from 1, 0 outside blocks; `name` is its name.
        position: number of the weight layer on its path, from 1; 0 for layers of other kinds.
    """

    layer: str
    place: NetworkPart
    block: int
    name: str
    position: int


NO_OWNER = ParameterOwner("", "other", 0, "", 0)


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


def parameter_owners(residual_map: ResidualMap) -> dict[str, ParameterOwner]:
    """The first layer that reads each parameter, by the parameter's qualified name."""
    owners: dict[str, ParameterOwner] = {}

    def add(layers: tuple[Layer, ...], place: NetworkPart, block: int = 0, name: str = "") -> None:
        position = 0
        for layer in layers:
            position += layer.kind == "weight"
            here = position if layer.kind == "weight" else 0
            for parameter in dict.fromkeys((*layer.parameters, *filter(None, (layer.gamma,)))):
                owners.setdefault(parameter, ParameterOwner(layer.path, place, block, name, here))

    add(residual_map.stem_layers, "stem")
    for index, block in enumerate(residual_map.blocks, 1):
        add(block.shared_layers, "shared", index, block.name)
        add(block.branch_layers, "branch", index, block.name)
        add(block.skip_layers, "skip", index, block.name)
        add(block.after_sum, "after_sum", index, block.name)
        if block.sum is not None:
            # A multiplier that is not folded into the branch belongs to the sum.
            owners.setdefault(f"{block.sum}.multiplier", ParameterOwner(block.sum, "branch", index, block.name, 0))
    add(residual_map.trunk_layers, "trunk")
    add(residual_map.head_layers, "head")
    return owners


def last_stem_layer(residual_map: ResidualMap) -> Layer | None:
    """The last layer before the first block that is a called module; None without one."""
    called = [layer for layer in residual_map.stem_layers if layer.called and ":" not in layer.path]
    return called[-1] if called else None


def require_known(names: Collection[str] | None, known: Collection[str], what: str) -> None:
    """Refuse names that a network does not have.

    Raises:
        ValueError: names the unknown ones, and some of the known.
    """
    unknown = [name for name in names or () if name not in known]
    if unknown:
        some = ", ".join(list(known)[:8]) or "none"
        more = ", …" if len(known) > 8 else ""
        raise ValueError(f"There is no {what} {', '.join(map(repr, unknown))} in this network; it has {some}{more}.")


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
