"""Where in a residual network a parameter is used, and where its blocks begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from normless.residual import Layer, ResidualMap

Place = Literal["stem", "shared", "branch", "skip", "after_sum", "trunk", "head", "other"]


@dataclass(frozen=True)
class Owner:
    """Where in a network a parameter is used.

    Attributes:
        layer: path of the layer, empty where no layer of the map reads the parameter.
        place: on which path.
        block: number of the block from 1, 0 outside blocks; `name` is its name.
        position: which weight layer of its path it belongs to, from 1; 0 for what is no weight layer.
    """

    layer: str
    place: Place
    block: int
    name: str
    position: int


NOWHERE = Owner("", "other", 0, "", 0)


def owners(residual_map: ResidualMap) -> dict[str, Owner]:
    """The place of every parameter that a layer of the map reads, by qualified name; that of its first reader."""
    found: dict[str, Owner] = {}

    def own(layers: tuple[Layer, ...], place: Place, block: int = 0, name: str = "") -> None:
        position = 0
        for layer in layers:
            position += layer.kind == "weight"
            here = position if layer.kind == "weight" else 0
            for parameter in dict.fromkeys((*layer.parameters, *filter(None, (layer.gamma,)))):
                found.setdefault(parameter, Owner(layer.path, place, block, name, here))

    own(residual_map.stem_layers, "stem")
    for index, block in enumerate(residual_map.blocks, 1):
        own(block.shared_layers, "shared", index, block.name)
        own(block.branch_layers, "branch", index, block.name)
        own(block.skip_layers, "skip", index, block.name)
        own(block.after_sum, "after_sum", index, block.name)
        if block.sum is not None:
            # A multiplier that could not be folded into the branch is the sum's.
            found.setdefault(f"{block.sum}.multiplier", Owner(block.sum, "branch", index, block.name, 0))
    own(residual_map.trunk_layers, "trunk")
    own(residual_map.head_layers, "head")
    return found


def last_stem_layer(residual_map: ResidualMap) -> Layer | None:
    """The last layer before the first block that is a module whose output can be seen; None without one."""
    called = [layer for layer in residual_map.stem_layers if layer.called and ":" not in layer.path]
    return called[-1] if called else None
