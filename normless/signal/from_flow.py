"""The steps of a network whose dataflow was traced."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from normless.residual.gates import passed_on
from normless.residual.graph import Dataflow, Operand, Operation
from normless.residual.layers import LayerCall, find_layers
from normless.residual.names import Names
from normless.residual.operations import ATTENTION, CONVOLUTION, POOLING, SOFTMAX
from normless.residual.sums import Sum, SumFinder
from normless.signal.steps import Step, Steps

_PRODUCTS = {"matmul", "bmm", "einsum"}


def steps_of_flow(model: nn.Module, flow: Dataflow) -> Steps:
    """The steps of a network, one for each operation of its dataflow, which is of the network as it is."""
    return _Reader(model, flow).read()


class Elementwise(nn.Module):
    """An operation of forward code that is an elementwise function, with its further arguments.

    Args:
        name: of torch's operation.
        arguments: behind the tensor.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.name = name
        self.arguments = arguments

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        function = getattr(torch.ops.aten, self.name)
        try:
            y: Tensor = function(x, *self.arguments)
        except (RuntimeError, TypeError):
            # An argument that goes by name alone, as that of GELU.
            y = function(x)
        return y

    def extra_repr(self) -> str:
        """What it applies."""
        return f"{self.name}, {self.arguments}"


class _Reader:
    """Turns operations into steps."""

    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self.model = model
        self.flow = flow
        self.names = Names(model)
        self.layers = find_layers(model, flow)
        self.sums: dict[int, Sum] = {found.at: found for found in SumFinder(flow, self.layers).find()}
        self.steps = Steps(outputs=set(flow.outputs))

    def read(self) -> Steps:
        tokens = self._tokens()
        for index, operation in enumerate(self.flow.operations):
            if operation.name == "parameter":
                self.steps.append(Step("parameter", parameters=self._named(operation), tokens=tokens.get(index)))
            else:
                self.steps.append(self._step(index, operation))
        for found in self.sums.values():
            self.steps.forks.add(found.fork)
            self.steps.branch_ends.update(dict.fromkeys(found.branches, found.at))
        return self.steps

    def _step(self, index: int, operation: Operation) -> Step:
        call = self.layers.owner.get(index)
        if call is not None:
            return self._of_layer(index, operation, call)
        reads, name = operation.parents, operation.name
        if index in self.sums:
            return Step("sum", (self.sums[index].skip,))
        if name == "input":
            return Step("input")
        if name == "embedding" and operation.parameters:
            return Step("parameter", parameters=self._named(operation))
        if name in ("add", "sub") and operation.floating:
            return Step("add", reads, parameters=self._named(operation))
        if name in ("cat", "stack"):
            return self._join(operation)
        if name in ("pad", "constant_pad_nd"):
            return Step("padding", reads, size=self._channels(reads[0], operation))
        if name in POOLING - SOFTMAX - ATTENTION:
            return self._pooling(operation)
        if name in ATTENTION or name in _PRODUCTS or (name == "mul" and len(reads) == 2):
            return self._product(index, operation)
        if name in ("mul", "div"):
            numbers = [one for one in operation.arguments if isinstance(one, (int, float)) and one]
            factor = abs(float(numbers[0])) if numbers else 1.0
            return Step(
                "factor", reads, parameters=self._named(operation), size=1 / factor if name == "div" else factor
            )
        return Step("other", reads)

    def _named(self, operation: Operation) -> tuple[str, ...]:
        """The learned tensors that an operation reads, each by its first name."""
        return tuple(dict.fromkeys(map(self.names.parameter, operation.parameters)))

    def _of_layer(self, index: int, operation: Operation, call: LayerCall) -> Step:
        """A layer is the step of its last operation; what comes before in it leads nowhere."""
        layer = self.layers.layers[call]
        if index != self.layers.operations[call][-1]:
            return Step("other", operation.parents)
        reads = tuple(sorted(self.layers.inputs(index, self.flow)))
        path, _, within = layer.path.partition(":")
        if layer.kind == "weight":
            share = self._inside(operation) if operation.name in CONVOLUTION else 1.0
            return Step("weight", reads[:1], layer.path, layer.parameters, size=share)
        if layer.kind == "norm":
            return Step("norm", reads[:1], layer.path, layer.parameters)
        if layer.kind == "activation":
            owner = None if within else self.model.get_submodule(path)
            if owner is None:
                arguments = tuple(one for one in operation.arguments[1:] if not isinstance(one, Operand))
                owner = nn.ReLU() if operation.name == "relu" else Elementwise(operation.name, arguments)
            return Step("activation", reads[:1], layer.path, module=owner)
        if layer.kind == "scale":
            return Step("factor", reads, layer.path, layer.parameters)
        return Step("other", reads, layer.path)

    def _inside(self, operation: Operation) -> float:
        """How many of a convolution's taps lie inside its input, rather than on the zeros around it."""
        sizes = operation.arguments[3:6]
        shape, after = self.flow[operation.parents[0]].shape, operation.shape
        weight = max(map(self.model.get_parameter, operation.parameters), key=Tensor.numel)
        if len(sizes) < 2 or not all(isinstance(one, tuple) for one in sizes) or "transpose" in operation.name:
            # Without padding, or with one that is a word.
            return 1.0
        if shape is None or after is None or not len(shape) == len(after) == weight.dim():
            return 1.0
        axes = weight.dim() - 2
        stride, padding, dilation = (self._each(one, axes) for one in (*sizes, (1,))[:3])
        share = 1.0
        for axis, (extent, outputs, kernel) in enumerate(zip(shape[2:], after[2:], weight.shape[2:], strict=True)):
            taps = [
                0 <= position * stride[axis] - padding[axis] + tap * dilation[axis] < extent
                for position in range(outputs)
                for tap in range(kernel)
            ]
            share *= sum(taps) / len(taps)
        return share or 1.0

    @staticmethod
    def _each(sizes: tuple[Any, ...], axes: int) -> tuple[Any, ...]:
        """One number for each axis."""
        return sizes * axes if len(sizes) == 1 else sizes

    def _join(self, operation: Operation) -> Step:
        reads = tuple(dict.fromkeys(operation.parents))
        whole = _elements(operation.shape)
        shares = tuple(self._elements(read) / whole for read in reads)
        if len(reads) == 1:
            return Step("padding", reads, size=min(1.0, shares[0]))
        return Step("join", reads, shares=shares)

    def _tokens(self) -> dict[int, tuple[int, int]]:
        """Where learned tensors lie among the activations that a concatenation joins them to."""
        found: dict[int, tuple[int, int]] = {}
        for operation in self.flow.operations:
            if operation.name != "cat" or not operation.arguments or not isinstance(operation.arguments[0], tuple):
                continue
            axis = operation.arguments[1] if len(operation.arguments) > 1 else 0
            position = 0
            for part in operation.arguments[0]:
                shape = self.flow[part.index].shape if isinstance(part, Operand) else None
                if shape is None or not isinstance(axis, int):
                    break
                if self.flow[part.index].name == "parameter":
                    found[part.index] = (position, shape[axis])
                position += shape[axis]
        return found

    def _pooling(self, operation: Operation) -> Step:
        kernel = operation.arguments[1] if len(operation.arguments) > 1 else None
        (source, *_) = operation.parents
        if "adaptive" in operation.name or operation.name == "mean" or not isinstance(kernel, tuple):
            size = self._elements(source) / _elements(operation.shape)
        else:
            axes = 3 if "3d" in operation.name else 2 if "2d" in operation.name else 1
            # Neighbours are neither equal nor independent: n of them count as √n, which is halfway.
            size = sqrt(prod(self._each(kernel, axes)))
        if operation.name in ("cumsum",) or "fft" in operation.name:
            return Step("other", (source,))
        return Step("greatest" if "max" in operation.name else "average", (source,), size=max(size, 1.0))

    def _product(self, index: int, operation: Operation) -> Step:
        value = passed_on(self.flow, self.layers, index)
        first = value[0] if value else operation.parents[0]
        others = tuple(parent for parent in operation.parents if parent != first)
        if operation.name != "mul" and len(value) == 1:
            shape = self.flow[first].shape
            return Step("attention", (first,), size=1.0 if shape is None or len(shape) < 2 else float(shape[-2]))
        return Step("gate", (first, *others[:1])) if operation.name == "mul" and others else Step("other", (first,))

    def _channels(self, source: int, operation: Operation) -> float:
        """The share of an image's channels that are not padding; zeros around it are counted where it is read."""
        before, after = self.flow[source].shape, operation.shape
        if before is None or after is None or len(before) != 4:
            return 1.0
        return min(1.0, before[1] / after[1])

    def _elements(self, index: int) -> int:
        return _elements(self.flow[index].shape)


def _elements(shape: tuple[int, ...] | None) -> int:
    """The number of elements; 1 where it is not known."""
    return 1 if shape is None else prod(shape)
