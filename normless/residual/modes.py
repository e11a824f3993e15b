"""The map of a network in both modes: what runs only in training, as an auxiliary head does, or in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from normless._internal.arguments import on_device_of
from normless.errors import UnresolvedStructureError
from normless.lifting import followed, in_mode, running
from normless.residual.blocks import ResidualBlock, Unresolved
from normless.residual.classify import NORMS, kind_of
from normless.residual.network import ResidualMap
from normless.residual.trace import traced_map


def map_of_both_modes(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ResidualMap:
    """The map in the network's own mode, with what runs only in the other; the blocks are those of both.

    It is exported in its own mode, else in the other. Only where a layer did not run, and a forward pass in the
    remaining mode runs it, is it exported in that mode too. Raises UnresolvedStructureError if neither is possible.
    """
    training = model.training
    try:
        mapped = traced_map(model, *inputs, **kwargs)
    except UnresolvedStructureError as error:
        training = not training
        try:
            with in_mode(model, training):
                mapped = traced_map(model, *inputs, **kwargs)
        except UnresolvedStructureError:
            raise error from error.__cause__
    idle = _idle(model, mapped)
    if not idle:
        return mapped
    other = "evaluation" if training else "training"
    try:
        called: set[str] = set()
        args, named = on_device_of(model, inputs, kwargs)
        with running(model, not training), followed(model, lambda path, *_: called.add(path)):
            model(*args, **named)
        if called.isdisjoint(idle):
            return _with_skipped(mapped, idle)
        with in_mode(model, not training):
            second = traced_map(model, *inputs, **kwargs)
    except Exception as error:
        norms = [path for path in idle if isinstance(model.get_submodule(path), NORMS)]
        reason = f"this norm did not run, and in {other} mode the network does not run on these inputs ({error})"
        return replace(mapped, unresolved=(*mapped.unresolved, *(Unresolved(path, reason) for path in norms)))
    return _with_skipped(_joined(mapped, second, other), idle - called)


def _with_skipped(mapped: ResidualMap, idle: set[str]) -> ResidualMap:
    """The map with the layers that other inputs may run as unresolved; what never runs is left out."""
    if mapped.flow is None or not mapped.flow.follows_values:
        return mapped
    reason = "it does not run on these inputs, and which layers run depends on values in tensors"
    return replace(mapped, unresolved=(*mapped.unresolved, *(Unresolved(path, reason) for path in sorted(idle))))


def _idle(model: nn.Module, mapped: ResidualMap) -> set[str]:
    """Paths of the norms and weight layers that did not run."""
    ran = {layer.path for layer in mapped.layers()} | (mapped.flow.called if mapped.flow else set())
    used = {name for layer in mapped.layers() for name in layer.parameters}
    return {
        path
        for path, module in model.named_modules()
        if (isinstance(module, NORMS) or kind_of(module) == "weight")
        and path not in ran
        and used.isdisjoint(f"{path}.{name}" for name, _ in module.named_parameters())
    }


def _joined(first: ResidualMap, second: ResidualMap, other: str) -> ResidualMap:
    """The first map with the blocks and layers of the second; a block of different layers in both is unresolved."""
    # Training may leave out whole blocks at random (layer drop).
    if other == "evaluation" and {*map(_layers, first.blocks)} < {*map(_layers, second.blocks)}:
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
            unresolved.append(Unresolved(block.name, f"this block has other layers or another place in {other} mode"))
    inside = {layer.path for block in second.blocks for layer in block.layers}
    rest = [layer for layer in second.layers() if layer.path not in known | inside]
    trunk = (*first.trunk_layers, *rest)
    return replace(first, blocks=tuple(blocks), trunk_layers=trunk, unresolved=tuple(unresolved))


def _layers(block: ResidualBlock) -> frozenset[str]:
    """The layers that a block has in both modes."""
    return frozenset(layer.path for layer in block.layers if layer.kind != "dropout")
