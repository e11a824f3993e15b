"""The map of a network that states its own structure, so that 10,000 layers need not be traced to be known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import nn

from normless.nn import ResidualSum
from normless.residual.blocks import Layer, ResidualBlock, ResidualMap
from normless.residual.classify import layer_of


@dataclass(frozen=True)
class BlockStructure:
    """The modules of one block by path relative to it, in execution order; see `ResidualBlock` for the parts."""

    branch: Sequence[str]
    skip: Sequence[str] = ()
    shared: Sequence[str] = ()
    after_sum: Sequence[str] = ()
    identity_skip: bool = True
    sum: str = "sum"


@dataclass(frozen=True)
class Structure:
    """The modules of a network by path, in execution order: the stem, the blocks by name, the head."""

    stem: Sequence[str]
    blocks: Sequence[tuple[str, BlockStructure]]
    head: Sequence[str]


@runtime_checkable
class StatesStructure(Protocol):
    """A module that knows its own residual structure."""

    def residual_structure(self) -> Structure:
        """Name the modules of stem, blocks and head in execution order."""
        ...


def stated_map(model: nn.Module, structure: Structure) -> ResidualMap:
    """Build the map from stated paths, reading from the modules themselves what each of them now is.

    The modules are looked at anew on every call, so the map of a converted network lists what is left.
    """
    stem, end = _walk(model, structure.stem, "", None)
    blocks = []
    for name, block in structure.blocks:
        prefix = f"{name}."
        shared, fork = _walk(model, block.shared, prefix, end)
        branch, end = _walk(model, block.branch, prefix, fork)
        branch += _multiplier(model, prefix + block.sum, end)
        skip, _ = _walk(model, [*block.skip, *_skip_norm(model, prefix + block.sum, block.sum)], prefix, fork)
        after, end = _walk(model, [block.sum, *block.after_sum], prefix, None)
        blocks.append(
            ResidualBlock(
                name=name,
                branch_layers=tuple(branch),
                skip_layers=tuple(skip),
                shared_layers=tuple(shared),
                after_sum=tuple(after),
                identity_skip=block.identity_skip and not skip,
                sum=prefix + block.sum,
                ends=(next((layer for layer in reversed(branch) if layer.kind not in ("scale", "dropout")), None),),
            )
        )
    head, _ = _walk(model, structure.head, "", end)
    return ResidualMap(blocks=tuple(blocks), stem_layers=tuple(stem), head_layers=tuple(head))


def _walk(model: nn.Module, paths: Sequence[str], prefix: str, source: str | None) -> tuple[list[Layer], str | None]:
    """The layers along `paths`, and the path of the layer whose output leaves the last of them unchanged."""
    layers = []
    for path in paths:
        for found, module in _expand(prefix + path, model.get_submodule(prefix + path)):
            layer = layer_of(found, module, source)
            if layer is not None:
                layers.append(layer)
                source = found
            elif not isinstance(module, nn.Identity):
                source = None
    return layers, source


def _skip_norm(model: nn.Module, path: str, name: str) -> list[str]:
    """The norm that the sum at `path` has on its skip input, by its name inside the block."""
    total = model.get_submodule(path)
    return [f"{name}.norm_skip"] if isinstance(total, ResidualSum) and total.norm_skip is not None else []


def _multiplier(model: nn.Module, path: str, source: str | None) -> list[Layer]:
    """The multiplier that the sum at `path` has on its branch, a layer scale of one factor or one per channel."""
    total = model.get_submodule(path)
    name = f"{path}.multiplier"
    if not isinstance(total, ResidualSum) or total.multiplier is None:
        return []
    return [Layer(path, "scale", source, gamma=name, parameters=(name,), description="multiplier")]


def _expand(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module as the sequence of modules that run in its place."""
    if isinstance(module, nn.Sequential):
        for name, child in module.named_children():
            yield from _expand(f"{path}.{name}", child)
        return
    if isinstance(module, ResidualSum):
        yield path, module
        if module.norm_total is not None:
            yield f"{path}.norm_total", module.norm_total
        return
    before = getattr(module, "before", None)
    if isinstance(before, nn.Module):
        yield from _expand(f"{path}.before", before)
    yield path, module
