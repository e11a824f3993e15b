"""The norms that a removal freezes, by place: of attention or feed-forward layers, of queries and keys, final."""

from __future__ import annotations

from typing import Literal

from normless.edits import Surgery
from normless.edits.transformer import makes_queries
from normless.residual import Layer, ResidualBlock

Place = Literal["feed_forward", "attention", "qk", "other", "final"]

# As Baroni et al. 2025: the norms of feed-forward layers before those of attentions, the final norm last.
ORDER: tuple[Place, ...] = ("feed_forward", "attention", "qk", "other", "final")
# What the map says of a norm of queries or keys.
_COMPARED = "an attention"


def norms_by_place(surgery: Surgery) -> dict[str, Place]:
    """Return the place of each norm by path, in execution order.

    A norm in a block has the place of the block's branch. In a network without attention, all norms before its head
    are `other`. Normalizations that define an output are left out.
    """
    found: dict[str, Place] = {layer.path: "other" for layer in surgery.norms()}
    of_queries = {path for path, reason in surgery.map.directions.items() if reason.startswith(_COMPARED)}
    attending = {block.name for block in surgery.map.walk() if _attends(surgery, block)}
    for block in surgery.map.walk():
        place: Place = "attention" if block.name in attending else "feed_forward" if attending else "other"
        found |= {layer.path: place for layer in block.layers if layer.path in found}
    found |= {layer.path: "final" for layer in surgery.map.head_layers if layer.path in found}
    for layer in surgery.map.layers():
        if layer.path in of_queries:
            found[layer.path] = "qk"
    position = {path: number for number, path in enumerate(surgery.map.by_path)}
    return dict(sorted(found.items(), key=lambda item: position[item[0]]))


def _attends(surgery: Surgery, block: ResidualBlock) -> bool:
    """Whether a block's branch, without the blocks inside it, makes queries."""
    inside: set[Layer] = {layer for inner in block.inner for layer in inner.layers}
    return any(makes_queries(surgery, layer) for layer in block.branch_layers if layer not in inside)
