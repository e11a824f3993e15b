"""Which operations of an exported graph are weight layers, norms and activations, and of which module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.fx import Node

from normless.nn import ShiftedActivation
from normless.residual.blocks import Kind, Layer
from normless.residual.classify import describe, kind_of
from normless.residual.graph import Dataflow, module_stack

_WEIGHT = {
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "linear", "matmul", "mm", "addmm", "bmm", "einsum", "bilinear",
}  # fmt: skip
_NORM = {
    "batch_norm", "native_batch_norm", "group_norm", "native_group_norm", "layer_norm", "native_layer_norm",
    "rms_norm", "instance_norm",
}  # fmt: skip
_ACTIVATION = {
    "relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "hardtanh", "tanh",
    "sigmoid", "hardswish", "hardsigmoid", "mish", "softplus", "softsign", "hardshrink", "softshrink", "threshold",
    "log_sigmoid", "clamp", "clamp_min",
}  # fmt: skip
_UNCHANGED = {"clone", "contiguous", "alias", "detach", "lift_fresh_copy"}


def operation(node: Node) -> str:
    """The operation's name without overload and in-place underscore: `relu` for `aten.relu_.default`."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2].rstrip("_")
    return getattr(target, "__name__", str(target))


def leaves_unchanged(node: Node) -> bool:
    """Whether the operation's output equals its input element by element."""
    return operation(node) in _UNCHANGED


@dataclass(frozen=True)
class LayerCall:
    """One run of one layer in a forward pass."""

    path: str
    call: int = 0


def find_layers(model: nn.Module, flow: Dataflow) -> tuple[dict[Node, LayerCall], dict[LayerCall, Layer]]:
    """The layer that every node belongs to, and the layers themselves in execution order.

    A layer may be several operations: a ghost batch norm is slices, norms and a concatenation.
    """
    owners: dict[Node, LayerCall] = {}
    kinds: dict[LayerCall, Kind] = {}
    for node in flow.nodes:
        found = _layer_of(model, flow, node)
        if found is not None:
            path, kind = found
            owners[node] = LayerCall(path, _call_of(node))
            kinds.setdefault(owners[node], kind)
    layers = {
        call: Layer(
            call.path,
            kind,
            input=_input_of(call, flow, owners),
            call=call.call,
            description=_description(model, call.path),
        )
        for call, kind in kinds.items()
    }
    return owners, layers


def _call_of(node: Node) -> int:
    """Which run of its module the operation belongs to: export marks the second with `@1`, and so on."""
    stack = node.meta.get("nn_module_stack") or {}
    return max((int(number) for key in stack for number in re.findall(r"@(\d+)", str(key))), default=0)


def _layer_of(model: nn.Module, flow: Dataflow, node: Node) -> tuple[str, Kind] | None:
    name = operation(node)
    if name in _WEIGHT and node in flow.weights:
        return _parameter_owner(model, flow.weights[node]), "weight"
    enclosing = list(_enclosing(model, node))
    if enclosing:
        path, module = enclosing[0]
        if len(enclosing) > 1 and isinstance(enclosing[1][1], ShiftedActivation):
            path, module = enclosing[1]
        kind = kind_of(module)
        assert kind is not None
        return path, kind
    if name in _NORM:
        return _home_of(model, node), "norm"
    return (_home_of(model, node), "activation") if name in _ACTIVATION else None


def _home_of(model: nn.Module, node: Node) -> str:
    """The module that is nothing but this operation, else its operation in the forward code, `PATH:NAME`."""
    stack = module_stack(node)
    path = stack[-1] if stack else ""
    return path if path and not list(model.get_submodule(path).children()) else f"{path}:{node.name}"


def _enclosing(model: nn.Module, node: Node) -> Iterator[tuple[str, nn.Module]]:
    """The modules around an operation that are layers, innermost first."""
    for path in reversed(module_stack(node)):
        module = model.get_submodule(path)
        if kind_of(module) is not None:
            yield path, module


def _parameter_owner(model: nn.Module, names: list[str]) -> str:
    """The module that holds the largest of the parameters, the weight."""
    largest = max(names, key=lambda name: model.get_parameter(name).numel())
    return largest.rpartition(".")[0]


def _input_of(call: LayerCall, flow: Dataflow, owners: dict[Node, LayerCall]) -> str | None:
    """The path of the layer whose output is this one's only input, or None."""
    sources = {
        parent
        for node, owner in owners.items()
        if owner == call
        for parent in flow.parents[node]
        if owners.get(parent) != call
    }
    source = owners.get(sources.pop()) if len(sources) == 1 else None
    return None if source is None else source.path


def _description(model: nn.Module, path: str) -> str:
    return path.partition(":")[2] or describe(model.get_submodule(path))
