"""Where in a network a layer lies: its number in execution order, and its block."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import nn

from normless.residual import Layer, ResidualMap
from normless.residual.blocks import Kind


@dataclass(frozen=True)
class Place:
    """A layer's path, its number among those of its kind in execution order from 1, and its outermost block if any.

    Weight layers are so counted as papers count layers: a ResNet-110's stem is layer 1, its classifier 110.
    """

    layer: str
    order: int | None
    block: str | None

    def columns(self) -> dict[str, Any]:
        """The start of a table's row."""
        return {"order": self.order, "layer": self.layer, "block": self.block}


def places(found: ResidualMap, kind: Kind = "weight") -> dict[Layer, Place]:
    """The place of every layer of a kind; of a module that runs several times, one for each call."""
    blocks = {layer: block.name for block in found.blocks for layer in block.layers}
    chosen = (layer for layer in found.layers() if layer.kind == kind)
    return {layer: Place(layer.path, order, blocks.get(layer)) for order, layer in enumerate(chosen, 1)}


def parameter_places(model: nn.Module, found: ResidualMap) -> dict[str, Place]:
    """The place of every parameter, by qualified name: of the first layer that reads it.

    It has no number where that is no weight layer; one that no layer reads is at the module that holds it.
    """
    blocks = {layer: block.name for block in found.blocks for layer in block.layers}
    weights = places(found)
    readers: dict[str, Place] = {}
    for layer in found.layers():
        place = weights.get(layer, Place(layer.path, None, blocks.get(layer)))
        for name in layer.parameters:
            readers.setdefault(name, place)
    named = (name for name, _ in model.named_parameters())
    return {name: readers.get(name, Place(name.rpartition(".")[0], None, None)) for name in named}


def require_known(asked: Collection[str] | None, known: Collection[str], what: str) -> None:
    """Refuse names that a network does not have.

    Raises:
        ValueError: naming those, and some of what there is.
    """
    unknown = [name for name in asked or () if name not in known]
    if unknown:
        some = ", ".join(list(known)[:8]) or "none"
        more = ", …" if len(known) > 8 else ""
        raise ValueError(f"There is no {what} {', '.join(map(repr, unknown))} in this network; it has {some}{more}.")


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """The same table with `order` as whole numbers, missing ones allowed."""
    return table.astype({"order": "Int64"})
