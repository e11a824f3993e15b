"""Find the layer whose output only a frozen norm reads, and the layers that read a frozen norm."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.nn import FrozenAffine, FrozenLayerNorm
from normless.nn.affine import is_transposed
from normless.recording import Tape
from normless.residual.graph import Fixed, Operation
from normless.residual.layers import Layers
from normless.residual.operations import CONVOLUTION, RESHAPE, RESHAPE_AS
from normless.residual.reader import read_dataflow

Side = Literal["before", "after"]

# A mean over positions, and a part of the positions, of an affine map of x is the affine map of that of x.
_OF_POSITIONS = {"select", "slice", "mean"}
_LAYERS = CONVOLUTION - {"convolution"} | {"linear", "addmm"}


class Neighbour(NamedTuple):
    """A layer into which a norm can be folded.

    Attributes:
        layer: its path.
        side: its side of the norm.
        sees_border: whether some outputs of the layer see fewer inputs than others, or padding.
        features: the number of values along the norm's axis; the layer's channels may be several such rows, one for
            each head.
        is_tied: whether embeddings look up its weight, so that it needs a weight of its own.
    """

    layer: str
    side: Side
    sees_border: bool
    features: int
    is_tied: bool = False


def names_of(layer: nn.Module) -> tuple[str, str]:
    """Return the names of the weight and bias of a layer: those of the packed input projection of an attention."""
    is_attention = isinstance(layer, nn.MultiheadAttention)
    return ("in_proj_weight", "in_proj_bias") if is_attention else ("weight", "bias")


class Neighbours:
    """Find the layers next to the frozen norms of a network in a pass, by their first qualified names."""

    def __init__(self, model: nn.Module, tape: Tape) -> None:
        self.flow = read_dataflow(tape)
        self.layers = Layers(model, self.flow)
        self.names = self.layers.names
        self.holders = Counter(
            id(parameter) for module in model.modules() for parameter in module._parameters.values()
        )
        self.reads = Counter(self._key(name) for operation in self.flow.operations for name in operation.parameters)
        # Computations without inputs, such as a penalty on weights, are not operations.
        parameters = (node for node in tape.nodes if node.kind == "parameter")
        self.reads |= Counter({self._key(node.name): node.readers for node in parameters})
        self.affines: dict[str, list[int]] = defaultdict(list)
        for index, operation in enumerate(self.flow.operations):
            if self._is_norm(operation):
                self.affines[self.names.canonical(operation.module)].append(index)

    def runs(self, path: str) -> bool:
        """Whether the norm at `path` runs."""
        return path in self.affines

    def uses(self, layer: str) -> bool:
        """Whether any operation reads the weight of the layer at `layer`."""
        module = self.names.modules[layer]
        return self.reads[id(getattr(module, names_of(module)[0]))] > 0

    def find(self, path: str, side: Side) -> tuple[Neighbour, ...] | str:
        """Return the layers on one side of the norm at `path`, or say why the norm cannot be folded there.

        A norm is folded into one layer before it, or into all layers after it.
        """
        if len(self.affines[path]) > 1:
            return "the norm runs at several places"
        (affine,), norm = self.affines[path], self.names.modules[path]
        shape = self.flow[affine].shape
        is_last = isinstance(norm, FrozenLayerNorm) and not norm.channels_first
        axis = len(shape or ()) - 1 if is_last else 1
        if shape is None or norm.scale.dim() > 1:
            return "its statistics are over several axes"
        features = shape[axis]
        if side == "after":
            return self._after(affine, axis, features)
        start = next((at for at in self._back(affine) if self._module(at) != path), None)
        return "it reads the network's input" if start is None else self._before(affine, start, axis, features)

    def _back(self, affine: int) -> Iterator[int]:
        """Iterate over the operations back from a norm, each the first input of the one before."""
        at = affine
        while self.flow[at].parents:
            at = self.flow[at].parents[0]
            yield at

    def _module(self, at: int) -> str:
        return self.names.canonical(self.flow[at].module)

    def _before(self, affine: int, at: int, axis: int, features: int) -> tuple[Neighbour, ...] | str:
        """Return the only layer before a norm; `at` is the operation that the norm's first operation reads."""
        path = self._module(affine)
        while True:
            operation, words = self.flow[at], self._words(self.flow[at])
            if operation.name == "input":
                return "it reads the network's input"
            is_layer = operation.name in _LAYERS
            moved = axis if is_layer else self._moved(at, axis, back=True)
            if moved is None:
                return f"it reads {words}"
            readers = {reader if reader is None else self._reader(reader, path) for reader in self._readers(at)}
            if len(readers) > 1:
                return f"other operations read the output of {words} too"
            if is_layer and any(self.flow[between].in_place for between in range(affine, at)):
                return "values are overwritten in place before it is read"
            if is_layer:
                layer = self._layer(at, axis, "before", features)
                return layer if isinstance(layer, str) else (layer,)
            at, axis = operation.parents[0], moved

    def _reader(self, at: int, norm: str) -> int | str:
        """Return an operation, or the path of the norm that it is part of."""
        return norm if self._module(at) == norm else at

    def _after(self, affine: int, axis: int, features: int) -> tuple[Neighbour, ...] | str:
        """Return all layers that read a norm."""
        found: list[Neighbour] = []
        pending = [(affine, axis)]
        while pending:
            index, axis = pending.pop()
            readers = self._readers(index)
            if not readers:
                return "nothing reads it"
            for at in readers:
                if at is None:
                    return "it is the network's output"
                operation = self.flow[at]
                is_layer = operation.name in _LAYERS and operation.parents[0] == index
                moved = axis if is_layer else self._moved(at, axis, back=False)
                if moved is None:
                    return f"{self._words(operation)} reads it"
                if not is_layer:
                    pending.append((at, moved))
                    continue
                if any(self.flow[between].in_place for between in range(affine, at)):
                    return "values are overwritten in place before it is read"
                layer = self._layer(at, axis, "after", features)
                if isinstance(layer, str):
                    return layer
                found.append(layer)
        return tuple(sorted(found))

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

    def _layer(self, index: int, axis: int, side: Side, features: int) -> Neighbour | str:
        """Return the layer of an operation if its weight and bias can change, or say why not."""
        operation = self.flow[index]
        path, words = self.names.canonical(operation.module), self._words(operation)
        module, elsewhere = (
            self.names.modules[path],
            f"{words} does not run in the layer that owns the weight and bias",
        )
        if not (isinstance(module, (_ConvNd, nn.Linear, nn.MultiheadAttention)) or is_transposed(module)):
            return elsewhere
        arguments = (*operation.arguments[1:3], None)
        if operation.name == "addmm":
            arguments = (operation.arguments[2], operation.arguments[0])
        is_tied = False
        for what, argument in zip(names_of(module), arguments, strict=False):
            name = argument.parameters[0] if isinstance(argument, Fixed) and argument.is_parameter else ""
            if argument is not None and not name:
                return f"the {what} of {words} is computed in the forward pass"
            is_looked_up = side == "after" and what == "weight" and bool(name) and self._is_looked_up(name)
            if name and not is_looked_up and not self._alone(name):
                return f"the {what} of {words} is used at several places"
            if self.names.parameters.get(name) is not getattr(module, what):
                return elsewhere
            is_tied |= is_looked_up
        kernel = module.kernel_size if isinstance(module, _ConvNd) else ()
        whole = (operation if side == "before" else self.flow[operation.parents[0]]).shape
        if whole is None or axis != len(whole) - 1 - len(kernel):
            return f"the channels of {path} are not the norm's"
        padding: Any = (*operation.arguments[4:5], ())[0] if kernel else ()
        pads = bool(kernel) and (max(kernel) > 1 if padding == "same" else padding != "valid" and any(padding))
        sees_border = side == "after" and (isinstance(module, _ConvTransposeNd) or pads)
        return Neighbour(path, side, sees_border, features, is_tied)

    def _is_looked_up(self, parameter: str) -> bool:
        """Whether embeddings look a parameter up, and one operation of one other module reads it besides."""
        holders = [
            module
            for module in dict.fromkeys(self.names.modules.values())
            if any(own is self.names.parameters[parameter] for own in module._parameters.values())
        ]
        tables = [module for module in holders if isinstance(module, nn.Embedding)]
        reads = [
            operation.name
            for operation in self.flow.operations
            for name in operation.parameters
            if self._key(name) == self._key(parameter)
        ]
        others = [name for name in reads if name != "embedding"]
        return bool(tables) and len(holders) == len(tables) + 1 and len(others) == 1

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
        if operation.name in _OF_POSITIONS and not back:
            return _kept_axis(operation, len(before), axis)
        idle = operation.name == "dropout" and not operation.is_dropout
        if not idle and operation.name not in RESHAPE | RESHAPE_AS:
            return None
        shape, image = (operation.shape, before) if back else (before, operation.shape)
        # The axis that runs over the same values has the same length, or that of several rows, and as many values
        # inside.
        inner = prod(shape[axis + 1 :])
        axes = [at for at in range(len(image)) if prod(image[at + 1 :]) == inner]
        same = [at for at in axes if image[at] == shape[axis]]
        return next(iter(same or [at for at in axes if image[at] % shape[axis] == 0]), None)


def _kept_axis(operation: Operation, axes: int, axis: int) -> int | None:
    """Return where an axis is after an operation over other axes, or None if the operation is over this axis."""
    given, *rest = operation.arguments[1:] if len(operation.arguments) > 1 else (None,)
    over = {place % axes for place in ((given,) if isinstance(given, int) else given or range(axes))}
    if axis in over:
        return None
    keeps = operation.name == "slice" or (operation.name == "mean" and rest[:1] == [True])
    return axis if keeps else axis - sum(place < axis for place in over)
