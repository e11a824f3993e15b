"""Find the residual map of a network in both modes, since layers such as auxiliary heads run in only one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from normless._internal.arguments import (
    carried_inputs,
    forward_arguments,
    inputs_missing,
    on_device_of,
    require_network,
)
from normless._internal.calling import Call, with_call
from normless._internal.copying import require_whole
from normless.errors import UnresolvedStructureError
from normless.residual._blocks import ResidualBlock, Unresolved
from normless.residual._classify import NORMS, kind_of
from normless.residual._network import ResidualMap
from normless.residual._reader import flow_of
from normless.residual._trace import map_of
from normless.state import collection_paused, in_mode


@with_call
def residual_map(
    model: nn.Module,
    *inputs: Any,
    strict: bool = False,
    example_inputs: Any = None,
    call: Call | None = None,
    **kwargs: Any,
) -> ResidualMap:
    """Find the residual blocks of a network in the dataflow of a forward pass.

    The pass leaves parameters, buffers, attributes, gradients, modes and random states as they were.

    Args:
        model: any network. The map includes layers that run only in the other mode (train or eval).
        inputs: positional arguments of `forward`. A converted network carries their shapes, and a network with a
            method `example_inputs()`, as those of `normless.models`, provides them. The values do not matter.
        strict: raise an error if any part is unresolved instead of listing it in the map's `unresolved`.
        example_inputs: replaces `inputs` and `kwargs`: a tensor, a tuple of positional arguments or a dictionary of
            keyword arguments.
        call: what runs in place of `forward`: the name of a method, or a function of the network and the inputs.
        kwargs: keyword arguments of `forward`, such as `input_ids`.

    Raises:
        UnresolvedStructureError: inputs are missing, or the forward pass fails; with `strict`, a part of the network
            is unresolved.
    """
    require_network(model)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    if not (inputs or kwargs):
        raise inputs_missing(model, "residual_map")
    require_whole(model, UnresolvedStructureError)
    with collection_paused():
        mapped = map_of_both_modes(model, inputs, kwargs)
    if strict and mapped.unresolved:
        listed = "; ".join(map(str, mapped.unresolved))
        raise UnresolvedStructureError(
            f"Parts of this {type(model).__name__} cannot be understood: {listed}. Without strict=True they are "
            "listed in the map's `unresolved`, and the rest is mapped."
        )
    return mapped


def map_of_both_modes(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ResidualMap:
    """Map a network in its own mode, and add the layers and blocks that run only in the other mode.

    The network runs in its own mode, or in the other mode if that fails. It runs in the remaining mode too if a layer
    did not run.

    Raises:
        UnresolvedStructureError: the forward pass fails in both modes.
    """
    training = model.training
    inputs, kwargs = on_device_of(model, inputs, kwargs)
    try:
        mapped = map_of(model, flow_of(model, inputs, kwargs))
    except UnresolvedStructureError as error:
        training = not training
        try:
            with in_mode(model, training):
                mapped = map_of(model, flow_of(model, inputs, kwargs))
        except UnresolvedStructureError:
            raise error from error.__cause__
    idle = _idle(model, mapped)
    if not idle:
        return mapped
    other_mode = "evaluation" if training else "training"
    try:
        with in_mode(model, not training):
            flow = flow_of(model, inputs, kwargs)
            if flow.called.isdisjoint(idle):
                return _with_skipped(mapped, idle)
            second = map_of(model, flow)
    except Exception as error:
        norms = [path for path in idle if isinstance(model.get_submodule(path), NORMS)]
        reason = f"this norm did not run, and in {other_mode} mode the network does not run on these inputs ({error})"
        return replace(mapped, unresolved=(*mapped.unresolved, *(Unresolved(path, reason) for path in norms)))
    return _with_skipped(_joined(mapped, second, other_mode), idle - flow.called)


def _with_skipped(mapped: ResidualMap, idle: set[str]) -> ResidualMap:
    """Add the layers that other inputs may run to the unresolved parts; ignore layers that never run."""
    if not mapped.flow.follows_values:
        return mapped
    reason = "it does not run on these inputs, and which layers run depends on values in tensors"
    return replace(mapped, unresolved=(*mapped.unresolved, *(Unresolved(path, reason) for path in sorted(idle))))


def _idle(model: nn.Module, mapped: ResidualMap) -> set[str]:
    """Return the paths of the norms and weight layers that did not run."""
    ran = {layer.path for layer in mapped.layers()} | mapped.flow.called
    used = {name for layer in mapped.layers() for name in layer.parameters}
    return {
        path
        for path, module in model.named_modules()
        if path not in ran
        and (isinstance(module, NORMS) or kind_of(module) == "weight")
        and used.isdisjoint(f"{path}.{name}" for name, _ in module.named_parameters())
    }


def _joined(first: ResidualMap, second: ResidualMap, other_mode: str) -> ResidualMap:
    """Add the blocks and layers of the second map to the first; a block with different layers is unresolved."""
    # Training may skip whole blocks at random (layer drop).
    if other_mode == "evaluation" and {*map(_layers, first.blocks)} < {*map(_layers, second.blocks)}:
        first, second = second, first
    known = {layer.path for layer in first.layers()}
    same = {_layers(block): block for block in first.blocks}
    blocks, after = list(first.blocks), 0
    unresolved = list(dict.fromkeys((*first.unresolved, *second.unresolved)))
    for block in second.blocks:
        paths = _layers(block)
        if paths in same:
            after = blocks.index(same[paths]) + 1
        elif paths.isdisjoint(known):
            blocks.insert(after, block)
            after += 1
        else:
            unresolved.append(
                Unresolved(block.name, f"this block has other layers or another place in {other_mode} mode")
            )
    inside = {layer.path for block in second.blocks for layer in block.layers}
    rest = [layer for layer in second.layers() if layer.path not in known | inside]
    trunk = (*first.trunk_layers, *rest)
    return replace(first, blocks=tuple(blocks), trunk_layers=trunk, unresolved=tuple(unresolved))


def _layers(block: ResidualBlock) -> frozenset[str]:
    """Return the paths of a block's layers without dropout, which is the same in both modes."""
    return frozenset(layer.path for layer in block.layers if layer.kind != "dropout")
