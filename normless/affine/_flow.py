"""Who reads what in a pass: the layer whose output only a norm reads, and the layers that read a norm."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized

from normless.nn import FrozenAffine
from normless.nn._affine import is_transposed
from normless.recording._tape import Tape
from normless.residual._graph import Fixed, Operand, Operation
from normless.residual._layers import Layers
from normless.residual._operations import CONVOLUTION, LAYOUT, RESHAPE_AS
from normless.residual._reader import read_dataflow

Side = Literal["before", "after"]

_LAYERS = CONVOLUTION - {"convolution"} | {"linear", "addmm"}
# Of an affine map of each channel, what these make is the affine map of what they make of x, if they keep channels.
_POOLS = {f"{kind}_pool{axes}d" for kind in ("avg", "adaptive_avg") for axes in (1, 2, 3)}
_MOVES = {"select", "slice", "roll", "flip"}
_LINEAR = LAYOUT | _POOLS | _MOVES | {"mean", "dropout"}


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


class NormFlow:
    """What reads and what writes each norm of a network in one pass, by first qualified names."""

    def __init__(self, model: nn.Module, tape: Tape) -> None:
        self.flow = read_dataflow(tape)
        self.layers = Layers(model, self.flow)
        self.names = self.layers.names
        self.holders: dict[int, list[nn.Module]] = defaultdict(list)
        for module in model.modules():
            for parameter in module._parameters.values():
                self.holders[id(parameter)].append(module)
        self.reads: dict[int, list[str]] = defaultdict(list)
        for operation in self.flow.operations:
            for name in operation.parameters:
                self.reads[self._key(name)].append(operation.name)
        # Computations without inputs, such as a penalty on weights, are not operations.
        read = Counter({self._key(node.name): node.readers for node in tape.nodes if node.kind == "parameter"})
        for key, count in read.items():
            self.reads[key] += ["a constant"] * (count - len(self.reads[key]))
        self.norms: dict[str, list[int]] = defaultdict(list)
        for index, operation in enumerate(self.flow.operations):
            if self._is_affine(operation):
                self.norms[self._module(index)].append(index)

    def runs(self, path: str) -> bool:
        """Whether the norm at `path` runs."""
        return path in self.norms

    def uses(self, layer: str) -> bool:
        """Whether any operation reads the weight of the layer at `layer`."""
        module = self.names.modules[layer]
        return bool(self.reads[id(getattr(module, names_of(module)[0]))])

    def find(self, path: str, side: Side, channels_last: bool, axes: int) -> tuple[Neighbour, ...] | str:
        """Return the layers on one side of a norm, or say why the norm cannot be folded there.

        A norm is folded into the one layer before it, or into all layers after it. Its factor has so many axes.
        """
        if len(self.norms[path]) > 1:
            return "the norm runs at several places"
        (norm,) = self.norms[path]
        shape = self.flow[norm].shape
        if shape is None or axes > 1:
            return "its statistics are over several axes"
        axis = len(shape) - 1 if channels_last else 1
        return (self._after if side == "after" else self._before)(norm, axis, shape[axis])

    def _before(self, norm: int, axis: int, features: int) -> tuple[Neighbour, ...] | str:
        """Return the only layer before a norm."""
        path = self._module(norm)
        first = self.flow.source(norm, lambda at: self._module(at) == path)
        start = self.flow.source(first, lambda at: self.flow[at].name in _LINEAR and not self.flow[at].is_dropout)
        words = self._words(start)
        if self.flow[start].name == "input":
            return "it reads the network's input"
        if self.flow[start].name not in _LAYERS:
            return f"it reads {words}"
        ends = self._ends(start, self._channels(start), features, lambda at, _: self._module(at) == path)
        if ends is None or isinstance(ends, int):
            if ends is not None and self.flow.depends(norm, ends):
                return f"it reads {self._words(ends)}"
            return f"other operations read the output of {words} too"
        if {own for _, own in ends} != {axis}:
            return f"the channels of {self._module(start)} are not the norm's"
        layer = self._layer(start, norm, "before", features)
        return layer if isinstance(layer, str) else (layer,)

    def _after(self, norm: int, axis: int, features: int) -> tuple[Neighbour, ...] | str:
        """Return all layers that read a norm."""

        def is_layer(at: int, read: int) -> bool:
            return self.flow[at].name in _LAYERS and self.flow[at].parents[0] == read

        ends = self._ends(norm, axis, features, is_layer)
        if ends is None:
            return "it is the network's output"
        if isinstance(ends, int):
            return f"{self._words(ends)} reads it"
        found: list[Neighbour] = []
        for at, own in ends:
            layer = self._layer(at, norm, "after", features)
            if isinstance(layer, str):
                return layer
            if own != self._channels(self.flow[at].parents[0], at):
                return f"the channels of {layer.layer} are not the norm's"
            found.append(layer)
        return tuple(sorted(found)) or "nothing reads it"

    def _ends(
        self, start: int, axis: int, features: int, is_end: Callable[[int, int], bool]
    ) -> list[tuple[int, int]] | int | None:
        """Return the operations to which the channels of an operation come unchanged, and on which axis.

        If another operation changes them, or none reads them but they are returned, it is the operation, or None.
        """
        ends, pending = list[tuple[int, int]](), [(start, axis)]
        while pending:
            index, axis = pending.pop()
            if index in self.flow.outputs:
                return None
            for at in self.flow.consumers[index]:
                if self.flow[at].name in RESHAPE_AS and self.flow[at].parents[0] != index:
                    continue
                if is_end(at, index):
                    ends.append((at, axis))
                    continue
                moved = self._moved(at, axis, features)
                if moved is None:
                    return at
                pending.append((at, moved))
        return ends

    def _channels(self, result: int, layer: int | None = None) -> int:
        """Return the axis of the channels in the output of a layer's operation, or in a tensor that a layer reads."""
        name, shape = self.flow[result if layer is None else layer].name, self.flow[result].shape
        return len(shape or ()) - 1 - (int(name[-2]) if name.endswith("d") else 0)

    def _is_affine(self, operation: Operation) -> bool:
        return operation.name == "addcmul" and isinstance(self.names.modules[operation.module], FrozenAffine)

    def _module(self, at: int) -> str:
        return self.names.canonical(self.flow[at].module)

    def _words(self, at: int) -> str:
        """Describe an operation by its name and module."""
        operation = self.flow[at]
        if self._is_affine(operation):
            return f"the norm {operation.module}"
        return f"{operation.name} of {operation.module}" if operation.module else operation.name

    def _key(self, parameter: str) -> int:
        return id(self.names.parameters[parameter])

    def _layer(self, index: int, norm: int, side: Side, features: int) -> Neighbour | str:
        """Return the layer of an operation if its weight and bias can change, or say why not."""
        operation, path, words = self.flow[index], self._module(index), self._words(index)
        module, elsewhere = (
            self.names.modules[path],
            f"{words} does not run in the layer that owns the weight and bias",
        )
        if any(self.flow[between].in_place for between in range(min(index, norm), max(index, norm))):
            return "values are overwritten in place before it is read"
        if not (isinstance(module, (_ConvNd, nn.Linear, nn.MultiheadAttention)) or is_transposed(module)):
            return elsewhere
        arguments = (*operation.arguments[1:3], None)
        if operation.name == "addmm":
            arguments = (operation.arguments[2], operation.arguments[0])
        is_tied = False
        for what, argument in zip(names_of(module), arguments, strict=False):
            name = argument.parameters[0] if isinstance(argument, Fixed) and argument.is_parameter else ""
            if argument is not None and not name:
                plain = "; fuse_for_inference makes it a plain weight" if is_parametrized(module) else ""
                return f"the {what} of {words} is computed in the forward pass{plain}"
            is_looked_up = side == "after" and what == "weight" and bool(name) and self._is_looked_up(name)
            if name and not is_looked_up and not self._is_alone(name):
                return f"the {what} of {words} is used at several places"
            if self.names.parameters.get(name) is not getattr(module, what):
                return elsewhere
            is_tied |= is_looked_up
        sees_border = side == "after" and (isinstance(module, _ConvTransposeNd) or pads_with_zeros(module, operation))
        return Neighbour(path, side, sees_border, features, is_tied)

    def _is_alone(self, parameter: str) -> bool:
        """Whether only one module has a parameter, and one operation reads it."""
        key = self._key(parameter)
        return len(self.holders[key]) == len(self.reads[key]) == 1

    def _is_looked_up(self, parameter: str) -> bool:
        """Whether embeddings look a parameter up, and one operation of one other module reads it besides."""
        key = self._key(parameter)
        others = [module for module in self.holders[key] if not isinstance(module, nn.Embedding)]
        reads = [name for name in self.reads[key] if name != "embedding"]
        return len(self.holders[key]) > len(others) == len(reads) == 1

    def _moved(self, at: int, axis: int, features: int) -> int | None:
        """Map the axis of a norm's channels in an operation's input to its output; None if it changes them.

        The operation runs on the numbers of the channels, in one row or several along the axis.
        """
        operation = self.flow[at]
        before, after = self.flow[operation.parents[0]].shape, operation.shape
        if before is None or after is None or operation.name not in _LINEAR or operation.is_dropout:
            return None
        numbers = _numbers(before, axis, features)
        made: Any = None if numbers is None else self._applied(operation, numbers)
        for moved in range(len(after)) if made is not None and made.shape == after else ():
            expected = _numbers(after, moved, features)
            if expected is not None and torch.allclose(made, expected):
                return moved
        return None

    def _applied(self, operation: Operation, x: Tensor) -> Any:
        """Return what an operation makes of a tensor in place of its first input, None if it is not known."""
        given = [
            x.new_empty(self.flow[own.index].shape or ()) if isinstance(own, Operand) else own
            for own in operation.arguments[1:]
        ]
        while given and given[-1] is None:
            given.pop()
        try:
            return getattr(torch.ops.aten, operation.name)(x, *given)
        except (AttributeError, RuntimeError, TypeError):
            return None


def _numbers(shape: tuple[int, ...], axis: int, features: int) -> Tensor | None:
    """Number the features along an axis, in rows of so many; return None if the axis has no whole rows."""
    if shape[axis] % features:
        return None
    numbers = torch.arange(shape[axis], dtype=torch.float32) % features
    return numbers.reshape(-1, *[1] * (len(shape) - axis - 1)).expand(shape)


def pads_with_zeros(layer: nn.Module, operation: Operation | None = None) -> bool:
    """Whether a convolution pads its input with zeros: in an operation, or by its own setting."""
    if not isinstance(layer, _ConvNd):
        return False
    padding: Any = layer.padding if layer.padding_mode == "zeros" else 0
    if operation is not None:
        padding = (*operation.arguments[4:5], 0)[0]
    if isinstance(padding, str):
        return padding == "same" and max(layer.kernel_size) > 1
    return any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
