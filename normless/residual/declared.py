"""The residual map of a network: as the network states it, without a trace of 10,000 layers, or as traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from torch import nn

from normless.arguments import carried_inputs, forward_arguments
from normless.errors import UnresolvedStructureError
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

    `first` is the name of its first block; `memory` are the modules after the last block of the first stack and
    `stem` those before its own first block, by path.
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


def residual_map(
    model: nn.Module, *inputs: Any, strict: bool = False, example_inputs: Any = None, **kwargs: Any
) -> ResidualMap:
    """Find the residual blocks of a network.

    A network that states its structure (those of `normless.models`) is not run. Any other is exported with
    `torch.export`; its weights, buffers, mode and random state stay as they are.

    Args:
        model: any network; what runs only in the mode (train or eval) in which it is not is read too.
        inputs: what its forward takes, positional; needed where the network must be traced, unless it was converted:
            then it carries their shapes. Values do not matter.
        strict: raise where anything is left unresolved, rather than list it in the map's `unresolved`.
        example_inputs: in the place of `inputs` and `kwargs`: a tensor, a tuple of positional or a dictionary of
            keyword arguments.
        kwargs: what its forward takes by name, such as `input_ids`.

    Raises:
        UnresolvedStructureError: the network must be traced and no inputs came, or it cannot be exported; with
            `strict`, something in it cannot be understood.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    if isinstance(model, StatesStructure):
        mapped = stated_map(model, model.residual_structure())
    elif inputs or kwargs:
        # torch.export takes a second to import; a network that states its structure must not pay for it.
        from normless.residual.modes import map_of_both_modes

        mapped = map_of_both_modes(model, inputs, kwargs)
    else:
        raise UnresolvedStructureError(
            f"A {type(model).__name__} does not state its residual structure, so it has to be traced: "
            "pass example inputs, as in residual_map(model, torch.randn(2, 3, 224, 224))."
        )
    if strict and mapped.unresolved:
        listed = "; ".join(map(str, mapped.unresolved))
        raise UnresolvedStructureError(
            f"Parts of this {type(model).__name__} cannot be understood: {listed}. Without strict=True they are "
            "listed in the map's `unresolved`, and the rest is mapped."
        )
    return mapped


def stated_map(model: nn.Module, structure: Structure) -> ResidualMap:
    """Build the map from stated paths and the modules that are there now, also those of a converted network."""
    stem, end = _walk(model, structure.stem, "", None)
    decoding, memory = structure.decoding, None
    blocks: list[ResidualBlock] = []
    trunk: tuple[Layer, ...] = ()
    for name, block in structure.blocks:
        if decoding is not None and name == decoding.first:
            after, memory = _walk(model, decoding.memory, "", end)
            before, end = _walk(model, decoding.stem, "", None)
            trunk = after + before
        mapped, end = _block(model, name, block, end, memory)
        blocks.append(mapped)
    head, _ = _walk(model, structure.head, "", end)
    return ResidualMap(tuple(blocks), stem_layers=stem, trunk_layers=trunk, head_layers=head)


def _block(
    model: nn.Module, name: str, block: BlockStructure, source: str | None, memory: str | None
) -> tuple[ResidualBlock, str | None]:
    """A block that reads `source`, and the path of the layer whose output leaves it unchanged."""
    prefix = f"{name}."
    total = prefix + block.sum
    shared, fork = _walk(model, block.shared, prefix, source)
    sum_module = model.get_submodule(total)
    skip_norm, branch_norm = (
        [f"{block.sum}.{name}"] if getattr(sum_module, name, None) is not None else []
        for name in ("norm_skip", "norm_branch")
    )
    branch, end = _walk(model, [*block.branch, *branch_norm], prefix, fork, memory)
    ends_in_layer = not branch or (end is not None and branch[-1].kind in ("weight", "norm", "activation"))
    branch += _multiplier(sum_module, total, "multiplier", end)
    skip, skip_end = _walk(model, [*block.skip, *skip_norm], prefix, fork)
    skip += _multiplier(sum_module, total, "skip_multiplier", skip_end)
    after, end = _walk(model, [block.sum, *block.after_sum], prefix, None)
    mapped = ResidualBlock(
        name=name,
        branch_layers=branch,
        skip_layers=skip,
        shared_layers=shared,
        after_sum=after,
        identity_skip=block.identity_skip and not skip,
        ends_in_layer=ends_in_layer,
        sum=total,
        chain=sum(layer.kind == "weight" and not layer.gating for layer in branch),
        ends=(next((layer for layer in reversed(branch) if layer.kind not in ("scale", "dropout")), None),),
    )
    return mapped, end


def _multiplier(total: nn.Module, path: str, part: str, source: str | None) -> tuple[Layer, ...]:
    """The scale that a residual sum applies to one of its sides, where it has that part."""
    if getattr(total, part, None) is None:
        return ()
    name = f"{path}.{part}"
    return (Layer(path, "scale", source, gamma=name, parameters=(name,), description=part.replace("_", " ")),)


def _walk(
    model: nn.Module, paths: Sequence[str | Projections], prefix: str, source: str | None, memory: str | None = None
) -> tuple[tuple[Layer, ...], str | None]:
    """The layers along `paths`, and the path of the layer whose output leaves the last of them unchanged."""
    layers: list[Layer] = []
    for path in paths:
        if isinstance(path, Projections):
            if path.of_memory:
                # What comes before feeds the query alone.
                layers = [replace(layer, gating=True) for layer in layers]
            for name in (path.query, path.key, path.value):
                reads = memory if path.of_memory and name != path.query else source
                projected, _ = _walk(model, [name], prefix, reads)
                layers += [replace(layer, gating=name != path.value) for layer in projected]
            source = None
            continue
        for place, module in expanded(prefix + path, model.get_submodule(prefix + path)):
            layer = layer_of(place, module, source)
            if layer is not None:
                layers.append(layer)
                source = place
            elif not isinstance(module, nn.Identity):
                source = None
    return tuple(layers), source


def expanded(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module as the sequence of modules that run in its place."""
    is_sequence = isinstance(module, nn.Sequential)
    for name, child in module.named_children():
        if is_sequence or name == "before":
            yield from expanded(f"{path}.{name}", child)
    if not is_sequence:
        yield path, module
    if isinstance(module, ResidualSum) and module.norm_total is not None:
        yield f"{path}.norm_total", module.norm_total
