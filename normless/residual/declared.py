"""The map of a network that states its own structure, so that 10,000 layers need not be traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import nn

from normless.nn import ResidualSum
from normless.residual.blocks import Layer, ResidualBlock, ResidualMap
from normless.residual.classify import layer_of


@dataclass(frozen=True)
class Projections:
    """The three layers side by side that an attention starts with, in execution order; the first two are gating.

    `of_memory` says that key and value read the memory of `Decoding`, not what the query reads.
    """

    query: str
    key: str
    value: str
    of_memory: bool = False


@dataclass(frozen=True)
class BlockStructure:
    """The modules of one block by path relative to it, in execution order; see `ResidualBlock` for the parts."""

    branch: Sequence[str | Projections]
    skip: Sequence[str] = ()
    shared: Sequence[str] = ()
    after_sum: Sequence[str] = ()
    identity_skip: bool = True
    sum: str = "sum"


@dataclass(frozen=True)
class Decoding:
    """A second stack of blocks, with an input of its own, whose branches read the end of the first stack: the memory.

    Attributes:
        first: name of its first block.
        memory: modules after the last block of the first stack, by path.
        stem: modules before its own first block, by path.
    """

    first: str
    memory: Sequence[str]
    stem: Sequence[str]


@dataclass(frozen=True)
class Structure:
    """The modules of a network by path, in execution order: the stem, the blocks by name, the head.

    `decoding` says where the blocks of a decoder start, None for a network of one stack.
    """

    stem: Sequence[str]
    blocks: Sequence[tuple[str, BlockStructure]]
    head: Sequence[str]
    decoding: Decoding | None = None


@runtime_checkable
class StatesStructure(Protocol):
    """A module that knows its own residual structure."""

    def residual_structure(self) -> Structure:
        """Name the modules of stem, blocks and head in execution order."""
        ...


def stated_map(model: nn.Module, structure: Structure) -> ResidualMap:
    """Build the map from stated paths and the modules that are there now, also those of a converted network."""
    stem, end = _walk(model, structure.stem, "", None)
    decoding, memory = structure.decoding, None
    blocks, trunk = [], []
    for name, block in structure.blocks:
        if decoding is not None and name == decoding.first:
            after, memory = _walk(model, decoding.memory, "", end)
            before, end = _walk(model, decoding.stem, "", None)
            trunk = [*after, *before]
        mapped, end = _block(model, name, block, end, memory)
        blocks.append(mapped)
    head, _ = _walk(model, structure.head, "", end)
    return ResidualMap(
        blocks=tuple(blocks), stem_layers=tuple(stem), trunk_layers=tuple(trunk), head_layers=tuple(head)
    )


def _block(
    model: nn.Module, name: str, block: BlockStructure, source: str | None, memory: str | None
) -> tuple[ResidualBlock, str | None]:
    """A block that reads `source`, and the path of the layer whose output leaves it unchanged."""
    prefix = f"{name}."
    total = prefix + block.sum
    shared, fork = _walk(model, block.shared, prefix, source)
    branch, end = _walk(model, block.branch, prefix, fork, memory)
    ends_in_layer = not branch or (end is not None and branch[-1].kind in ("weight", "norm", "activation"))
    branch += _multiplier(model, total, end)
    has_skip_norm = getattr(model.get_submodule(total), "norm_skip", None) is not None
    skip, _ = _walk(model, [*block.skip, *[f"{block.sum}.norm_skip"] * has_skip_norm], prefix, fork)
    after, end = _walk(model, [block.sum, *block.after_sum], prefix, None)
    weights = [layer for layer in branch if layer.kind == "weight"]
    serial = sum(not layer.gating for layer in weights)
    mapped = ResidualBlock(
        name=name,
        branch_layers=tuple(branch),
        skip_layers=tuple(skip),
        shared_layers=tuple(shared),
        after_sum=tuple(after),
        identity_skip=block.identity_skip and not skip,
        ends_in_layer=ends_in_layer,
        sum=total,
        chain=None if serial == len(weights) else serial,
        ends=(next((layer for layer in reversed(branch) if layer.kind not in ("scale", "dropout")), None),),
    )
    return mapped, end


def _walk(
    model: nn.Module,
    paths: Sequence[str | Projections],
    prefix: str,
    source: str | None,
    memory: str | None = None,
) -> tuple[list[Layer], str | None]:
    """The layers along `paths`, and the path of the layer whose output leaves the last of them unchanged."""
    layers: list[Layer] = []
    for path in paths:
        if isinstance(path, Projections):
            if path.of_memory:
                # What comes before feeds the query alone.
                layers = [replace(layer, gating=True) for layer in layers]
            layers += _projections(model, path, prefix, source, memory)
            source = None
            continue
        for place, module in expanded(prefix + path, model.get_submodule(prefix + path)):
            layer = layer_of(place, module, source)
            if layer is not None:
                layers.append(layer)
                source = place
            elif not isinstance(module, nn.Identity):
                source = None
    return layers, source


def _projections(
    model: nn.Module, one: Projections, prefix: str, source: str | None, memory: str | None
) -> list[Layer]:
    """The layers of an attention's query, key and value, and those that an edit has put before them."""
    looked_up = memory if one.of_memory else source
    query, _ = _walk(model, [one.query], prefix, source)
    key, _ = _walk(model, [one.key], prefix, looked_up)
    value, _ = _walk(model, [one.value], prefix, looked_up)
    return [*(replace(layer, gating=True) for layer in [*query, *key]), *value]


def _multiplier(model: nn.Module, path: str, source: str | None) -> list[Layer]:
    """The multiplier that the sum at `path` has on its branch, a layer scale of one factor or one per channel."""
    total = model.get_submodule(path)
    name = f"{path}.multiplier"
    if not isinstance(total, ResidualSum) or total.multiplier is None:
        return []
    return [Layer(path, "scale", source, gamma=name, parameters=(name,), description="multiplier")]


def expanded(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module as the sequence of modules that run in its place."""
    if isinstance(module, nn.Sequential):
        for name, child in module.named_children():
            yield from expanded(f"{path}.{name}", child)
        return
    if isinstance(module, ResidualSum):
        yield path, module
        if module.norm_total is not None:
            yield f"{path}.norm_total", module.norm_total
        return
    before = getattr(module, "before", None)
    if isinstance(before, nn.Module):
        yield from expanded(f"{path}.before", before)
    yield path, module
