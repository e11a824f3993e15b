"""The layer and the part of the network that each parameter belongs to, and checks of parameter names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from normless.residual import Layer, ResidualMap

NetworkPart = Literal["stem", "shared", "branch", "skip", "after_sum", "trunk", "head", "other"]


@dataclass(frozen=True)
class ParameterOwner:
    """The layer that reads a parameter, and the part of the network it belongs to.

    Attributes:
        layer: path of the layer; empty if no layer of the map reads the parameter.
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


def parameter_owners(residual_map: ResidualMap) -> dict[str, ParameterOwner]:
    """Return the first layer that reads each parameter, by the parameter's qualified name."""
    owners: dict[str, ParameterOwner] = {}

    def add(layers: tuple[Layer, ...], place: NetworkPart, block: int = 0, name: str = "") -> None:
        position = 0
        for layer in layers:
            position += layer.kind == "weight"
            owner = ParameterOwner(layer.path, place, block, name, position if layer.kind == "weight" else 0)
            for parameter in filter(None, (*layer.parameters, layer.gamma)):
                owners.setdefault(parameter, owner)

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
    """Return the last called module before the first block; None without one."""
    called = [layer for layer in residual_map.stem_layers if layer.called and ":" not in layer.path]
    return called[-1] if called else None


def require_known(names: Collection[str] | None, known: Collection[str], what: str) -> None:
    """Check that a network has parameters or layers of these names.

    Raises:
        ValueError: a name is unknown; the message suggests known names.
    """
    unknown = [name for name in names or () if name not in known]
    if unknown:
        examples = ", ".join(list(known)[:8]) or "none"
        more = ", …" if len(known) > 8 else ""
        raise ValueError(
            f"There is no {what} {', '.join(map(repr, unknown))} in this network; it has {examples}{more}."
        )
