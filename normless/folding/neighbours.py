"""Find the layer whose output only a frozen norm reads, and the only layer that reads a frozen norm."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.nn import FrozenAffine
from normless.residual.graph import Fixed, Operation
from normless.residual.layers import Layers
from normless.residual.operations import CONVOLUTION, RESHAPE, RESHAPE_AS
from normless.residual.reader import read_dataflow

Side = Literal["before", "after"]

_LAYERS = CONVOLUTION - {"convolution"} | {"linear"}


class Neighbour(NamedTuple):
    """A layer into which a norm can be folded, and its side of the norm.

    `sees_border` says that some outputs of the layer see fewer inputs than others, or padding.
    """

    layer: str
    side: Side
    sees_border: bool


class Neighbours:
    """Find the layers next to the frozen norms of a network exported in one mode, by their first qualified names."""

    def __init__(self, model: nn.Module, program: ExportedProgram) -> None:
        self.flow = read_dataflow(program)
        self.layers = Layers(model, self.flow)
        self.names = self.layers.names
        self.holders = Counter(
            id(parameter) for module in model.modules() for parameter in module._parameters.values()
        )
        self.reads = Counter(self._key(name) for operation in self.flow.operations for name in operation.parameters)
        # Computations without inputs, such as a penalty on weights, are not operations.
        known = program.graph_signature.inputs_to_parameters
        nodes = (node for node in program.graph.nodes if node.name in known)
        self.reads |= Counter(self._key(known[node.name]) for node in nodes for _ in node.users)
        self.affines: dict[str, list[int]] = defaultdict(list)
        for index, operation in enumerate(self.flow.operations):
            if self._is_norm(operation):
                self.affines[self.names.canonical(operation.module)].append(index)

    def runs(self, path: str) -> bool:
        """Whether the norm at `path` runs."""
        return path in self.affines

    def uses(self, layer: str) -> bool:
        """Whether any operation reads the weight of the layer at `layer`."""
        return self.reads[id(self.names.modules[layer].weight)] > 0

    def find(self, path: str, side: Side) -> Neighbour | str:
        """Return the layer on one side of the norm at `path`, or say why the norm cannot be folded there."""
        if len(self.affines[path]) > 1:
            return "the norm runs at several places"
        (affine,), axis, back = self.affines[path], 1, side == "before"
        index = affine
        while True:
            following = self.flow[index].parents[:1] if back else self._readers(index)
            if len(following) != 1:
                return "several operations read it" if following else "nothing reads it"
            (at,) = following
            if at is None:
                return "it is the network's output"
            operation = self.flow[at]
            if back and operation.name == "input":
                return "it reads the network's input"
            words = self._words(operation)
            is_layer = operation.name in _LAYERS and (back or operation.parents[0] == index)
            moved = axis if is_layer else self._moved(at, axis, back=back)
            if moved is None:
                return f"it reads {words}" if back else f"{words} reads it"
            if back and len(self._readers(at)) > 1:
                return f"other operations read the output of {words} too"
            if is_layer and any(self.flow[between].in_place for between in range(affine, at)):
                return "values are overwritten in place before it is read"
            if is_layer:
                return self._layer(at, axis, side)
            index, axis = at, moved

    def _is_norm(self, operation: Operation) -> bool:
        return operation.name == "addcmul" and isinstance(self.names.modules[operation.module], FrozenAffine)

    def _words(self, operation: Operation) -> str:
        """Describe an operation by its name and module."""
        if self._is_norm(operation):
            return f"the norm {operation.module}"
        return f"{operation.name} of {operation.module}" if operation.module else operation.name

    def _key(self, parameter: str) -> int:
        return id(self.names.parameters[parameter])

    def _alone(self, parameter: str) -> bool:
        """Whether only one module has a parameter, and one operation reads it."""
        return self.holders[self._key(parameter)] == self.reads[self._key(parameter)] == 1

    def _readers(self, index: int) -> list[int | None]:
        """Return the operations that read the values of an operation, and None if it is an output."""
        operations = ((reader, self.flow[reader]) for reader in self.flow.consumers[index])
        readers = [at for at, reader in operations if reader.name not in RESHAPE_AS or reader.parents[0] == index]
        return [*readers, *[None] * (index in self.flow.outputs)]

    def _layer(self, index: int, axis: int, side: Side) -> Neighbour | str:
        """Return the layer of an operation if its weight and bias can change, or say why not."""
        operation = self.flow[index]
        path, words = self.names.canonical(operation.module), self._words(operation)
        module, elsewhere = (
            self.names.modules[path],
            f"{words} does not run in the layer that owns the weight and bias",
        )
        if not isinstance(module, (_ConvNd, nn.Linear)):
            return elsewhere
        for what, argument in zip(("weight", "bias"), (*operation.arguments[1:3], None), strict=False):
            name = argument.parameters[0] if isinstance(argument, Fixed) and argument.is_parameter else ""
            if argument is not None and not name:
                return f"the {what} of {words} is computed in the forward pass"
            if name and not self._alone(name):
                return f"the {what} of {words} is used at several places"
            if self.names.parameters.get(name) is not getattr(module, what):
                return elsewhere
        kernel = () if isinstance(module, nn.Linear) else module.kernel_size
        whole = (operation if side == "before" else self.flow[operation.parents[0]]).shape
        if whole is None or axis != len(whole) - 1 - len(kernel):
            return f"the channels of {path} are not the norm's"
        padding: Any = (*operation.arguments[4:5], ())[0]
        pads = max(kernel) > 1 if padding == "same" else padding != "valid" and any(padding)
        return Neighbour(path, side, side == "after" and (isinstance(module, _ConvTransposeNd) or pads))

    def _moved(self, index: int, axis: int, *, back: bool) -> int | None:
        """Map an axis of an operation's input to its output, or back; return None if channels mix."""
        operation = self.flow[index]
        before = self.flow[operation.parents[0]].shape if operation.parents else None
        if operation.shape is None or before is None:
            return None
        if operation.name in ("permute", "transpose"):
            # Applied to axes of lengths 0, 1, 2, …, it shows where each axis goes.
            numbered = torch.empty(tuple(range(len(before))), device="meta")
            order = list(getattr(torch, operation.name)(numbered, *operation.arguments[1:]).shape)
            return order[axis] if back else order.index(axis)
        idle = operation.name == "dropout" and not operation.is_dropout
        if not idle and operation.name not in RESHAPE | RESHAPE_AS:
            return None
        shape, image = (operation.shape, before) if back else (before, operation.shape)
        # The axis that runs over the same values has the same length and as many values inside.
        inner = prod(shape[axis + 1 :])
        axes = (at for at in range(len(image)) if image[at] == shape[axis] and prod(image[at + 1 :]) == inner)
        return next(axes, None)
