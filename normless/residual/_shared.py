"""Merge the runs of shared modules and the steps of loops, so that each layer and block is listed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from normless.residual._blocks import Layer, ResidualBlock
from normless.residual._network import ResidualMap

_SIDES = ("branch_layers", "skip_layers", "shared_layers", "after_sum")


def with_shared_once(found: ResidualMap) -> ResidualMap:
    """Merge the runs of shared modules: of a Siamese network, of a recurrent cell, of a block that runs repeatedly.

    Blocks whose branches have the same weights, and which the same code adds, become one block with the `levels` of
    all. Later runs of layers outside blocks are dropped. The map's `alike` has the calls of later runs by those of
    the first.
    """
    blocks: dict[Any, ResidualBlock] = {}
    alike: dict[Hashable, Hashable] = {}
    for block in found.blocks:
        key = _identity(block)
        if key in blocks:
            alike.update(_aligned(blocks[key], block))
            blocks[key] = _merged(blocks[key], block)
        else:
            blocks[key] = block
    first = {layer.path for layer in found.layers() if not layer.call}
    # Functions outside blocks that read the same layer, as the activation of a stem that every step runs.
    readers: dict[Any, Layer] = {}
    same: dict[str | None, str] = {}

    def once(layers: tuple[Layer, ...]) -> Iterator[Layer]:
        for layer in layers:
            if layer.call and layer.path in first:
                continue
            known = layer
            if layer.made_by is not None and layer.input is not None:
                known = readers.setdefault((*_spot(layer), same.get(layer.input, layer.input)), layer)
            if known is layer:
                yield layer
            else:
                same[layer.path] = known.path
                alike[layer.key] = known.key

    stem, trunk, head = (tuple(once(layers)) for layers in (found.stem_layers, found.trunk_layers, found.head_layers))
    merged = tuple(blocks.values())
    return replace(found, blocks=merged, stem_layers=stem, trunk_layers=trunk, head_layers=head, alike=alike)


def _identity(block: ResidualBlock) -> Any:
    """Return what is equal for two runs of a block: the weights on its branch, and the code that adds them."""
    weights = frozenset(name for layer in block.branch_layers if layer.kind == "weight" for name in layer.parameters)
    additions = tuple((*addition.made_by.spot[:3], addition.branch) for addition in block.additions)
    if not weights or not (additions or block.sum):
        return tuple(layer.path for layer in block.layers), additions, block.sum, block.module
    return weights, additions, block.sum


def _spot(layer: Layer) -> tuple[Any, ...]:
    """Return what is equal for two runs of a layer: the path of a module, or the code of a function."""
    return (layer.path,) if layer.made_by is None else layer.made_by.spot[:3]


def _by_spot(layers: Iterable[Layer]) -> dict[Any, list[Layer]]:
    spots: dict[Any, list[Layer]] = defaultdict(list)
    for layer in layers:
        spots[_spot(layer)].append(layer)
    return spots


def _aligned(known: ResidualBlock, later: ResidualBlock) -> Iterator[tuple[Hashable, Hashable]]:
    """Pair the layers and additions of a later run of a block with those of its first run, by their keys."""
    spots = _by_spot(known.layers)
    for spot, layers in _by_spot(later.layers).items():
        for layer, first in zip(layers, spots.get(spot, ()), strict=False):
            yield layer.key, first.key
    for addition, former in zip(later.additions, known.additions, strict=True):
        yield addition.made_by, former.made_by
    for inner, own in zip(later.inner, known.inner, strict=False):
        if len(inner.additions) == len(own.additions):
            yield from _aligned(own, inner)


def _merged(known: ResidualBlock, later: ResidualBlock) -> ResidualBlock:
    """Return a block with its levels and the layers that only a later run has."""
    spots = {*_by_spot(known.layers)}
    sides: dict[str, Any] = {
        side: getattr(known, side) + tuple(layer for layer in getattr(later, side) if _spot(layer) not in spots)
        for side in _SIDES
    }
    return replace(known, levels=tuple(dict.fromkeys((*known.levels, *later.levels))), **sides)
