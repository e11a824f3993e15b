"""Convert the dataflow of a network to steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn import ResidualSum
from normless.residual.classify import window_size
from normless.residual.graph import Dataflow, Fixed, Operand, Operation
from normless.residual.layers import LayerRun, Layers
from normless.residual.main_path import passed_on
from normless.residual.operations import ATTENTION, CONVOLUTION, POOLING, PRODUCT, SOFTMAX
from normless.residual.sums import Sum, SumFinder
from normless.signal.propagation import RULES
from normless.signal.steps import Kind, Step, Steps


class _TorchOperation(nn.Module):
    """An ATen operation by name, with its arguments after the tensor."""

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.name, self.arguments = name, arguments

    def forward(self, x: Tensor) -> Tensor:
        function: Callable[..., Tensor] = getattr(torch.ops.aten, self.name)
        try:
            return function(x, *self.arguments)
        except (RuntimeError, TypeError):
            # A keyword-only argument, such as that of GELU.
            return function(x)


def steps_of_flow(model: nn.Module, flow: Dataflow) -> Steps:
    """Convert each operation of a network's dataflow, which must be up to date, to a step."""
    reader = _Reader(model, flow)
    return Steps(
        steps=[reader.placed(*item) for item in enumerate(flow.operations)],
        forks={total.fork for total in reader.sums.values()},
        totals={at: reader.result(at) for at in reader.sums},
        outputs=set(flow.outputs),
    )


class _Reader:
    """Convert operations to steps."""

    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self.model, self.flow = model, flow
        self.layers = Layers(model, flow)
        self.names = self.layers.names
        self.sums = SumFinder(self.layers).sums
        self.tokens = self._tokens()
        self.ruled = self._ruled()

    def result(self, at: int) -> int:
        """Return the step of a residual sum's result, including a factor of its module."""
        for reader in self.flow.consumers[at]:
            inside = isinstance(self.model.get_submodule(self.flow[reader].module), ResidualSum)
            if inside and self.flow[reader].name == "mul":
                return reader
        return at

    def placed(self, index: int, operation: Operation) -> Step:
        """Return the step of an operation with its place; a module of a class with a rule is one step."""
        run = next((run for run in operation.runs if run in self.ruled), None)
        if run is None:
            return replace(self.step(index, operation), place=operation.module)
        parts, module = self.ruled[run]
        if index != parts[-1]:
            return Step("other", operation.parents, place=operation.module)
        reads = tuple({parent: None for part in parts for parent in self.flow[part].parents if parent not in parts})
        return Step("other", reads[:1], place=operation.module, module=module)

    def _ruled(self) -> dict[int, tuple[list[int], nn.Module]]:
        """Return the operations and the module of each run of a module whose class has a rule, but no layer."""
        ruled: dict[int, tuple[list[int], nn.Module]] = {}
        modules = dict(self.model.named_modules(remove_duplicate=False))
        for index, operation in enumerate(self.flow.operations):
            for path, run in zip(operation.modules, operation.runs, strict=True):
                module = modules[path]
                if type(module) in RULES and index not in self.layers.owner:
                    ruled.setdefault(run, ([], module))[0].append(index)
        return ruled

    def step(self, index: int, operation: Operation) -> Step:
        reads, name = operation.parents, operation.name
        run = self.layers.owner.get(index)
        if run is not None:
            return self._of_layer(index, operation, run)
        if name == "parameter" or (name == "embedding" and operation.parameters):
            return Step("parameter", parameters=self._named(operation), tokens=self.tokens.get(index))
        if index in self.sums:
            return self._sum(operation, self.sums[index])
        if name == "input":
            return Step("input" if operation.floating else "other")
        if operation.leaves_unchanged:
            return Step("layout", reads)
        if name == "glu":
            return Step("other", reads, module=nn.GLU(*_plain(operation)))
        if name in ("add", "sub") and operation.floating:
            return Step("add", reads, parameters=self._named(operation))
        if name in ("cat", "stack"):
            return self._join(operation)
        if name in ("pad", "constant_pad_nd"):
            before, after = self.flow[reads[0]].shape, operation.shape
            # Zero padding of an image counts where it is read.
            share = 1.0 if before is None or after is None or len(before) != 4 else before[1] / after[1]
            return Step("padding", reads, size=min(1.0, share))
        if name in POOLING - SOFTMAX - ATTENTION:
            return self._pooling(operation)
        if name in ATTENTION or name in PRODUCT or (name == "mul" and len(reads) == 2):
            return self._product(index, operation)
        if name in ("mul", "div"):
            named, factor = (
                self._named(operation),
                next((abs(number) for number in operation.numbers if number), None),
            )
            if named or factor is not None:
                factor = float(factor or 1.0)
                return Step("factor", reads, parameters=named, size=1 / factor if name == "div" else factor)
        return Step("other", reads)

    def _sum(self, operation: Operation, total: Sum) -> Step:
        """Convert a residual sum; the second of two terms may have a factor, as in `torch.add(x, y, alpha=2)`."""
        terms, last, factor = (total.skip, *total.branches), None, 1.0
        if operation.name in ("add", "sub") and len(terms) == 2:
            last = operation.operands[-1]
            factor = next(
                (float(argument) for argument in _plain(operation) if isinstance(argument, (int, float))), 1.0
            )
            factor = -factor if operation.name == "sub" else factor
        weight = next((argument for argument in operation.arguments[2:] if isinstance(argument, (int, float))), None)
        if operation.name == "lerp" and weight is not None:
            last, factor = operation.operands[-1], float(weight)
            return Step("sum", terms, shares=tuple(factor if term == last else 1 - factor for term in terms))
        return Step("sum", terms, shares=tuple(factor if term == last else 1.0 for term in terms))

    def _named(self, operation: Operation) -> tuple[str, ...]:
        """Return the first names of the learned tensors that an operation reads."""
        return tuple(dict.fromkeys(map(self.names.parameter, operation.parameters)))

    def _of_layer(self, index: int, operation: Operation, run: LayerRun) -> Step:
        """Convert a layer to a step at its last operation; nothing reads the steps of its other operations."""
        layer = run.layer
        if index != run.operations[-1]:
            return Step("other", operation.parents)
        reads = tuple(sorted(self.layers.inputs(index)))
        path, _, within = layer.path.partition(":")
        module = None if within else self.model.get_submodule(path)
        if layer.kind == "activation":
            if module is None:
                module = nn.ReLU() if operation.name == "relu" else _TorchOperation(operation.name, _plain(operation))
            return Step("activation", reads[:1], layer.path, module=module, call=layer.call)
        if layer.kind == "scale":
            return Step("factor", reads, layer.path, layer.parameters, call=layer.call)
        share = self._inside(operation) if layer.kind == "weight" and operation.name in CONVOLUTION else 1.0
        reads, called = reads if layer.kind == "dropout" else reads[:1], module if layer.called else None
        kind = "norm" if layer.kind == "direction" else layer.kind
        return Step(kind, reads, layer.path, layer.parameters, called, share, call=layer.call, shifts=layer.shifts)

    def _inside(self, operation: Operation) -> float:
        """Return the share of a convolution's taps that lie inside its input and not on padding."""
        sizes, shape = operation.arguments[3:6], self.flow[operation.parents[0]].shape
        weight = max(map(self.model.get_parameter, operation.parameters), key=Tensor.numel)
        # A padding may be a string.
        plain = all(isinstance(size, tuple) for size in sizes) and "transpose" not in operation.name
        if not plain or shape is None or len(shape) != weight.dim():
            return 1.0
        image, kernel = torch.ones(1, 1, *shape[2:]), torch.ones(1, 1, *weight.shape[2:])
        taps = getattr(F, f"conv{weight.dim() - 2}d")(image, kernel, None, *sizes)
        return float(taps.double().mean()) / kernel.numel()

    def _join(self, operation: Operation) -> Step:
        reads = tuple(dict.fromkeys(operation.parents))
        shares = tuple(self._ratio(read, operation) for read in reads)
        if len(reads) == 1:
            return Step("padding", reads, size=min(1.0, shares[0]))
        return Step("join", reads, shares=shares)

    def _tokens(self) -> dict[int, tuple[int, int]]:
        """Return the first position and the number of positions of learned tensors in concatenations."""
        places: dict[int, tuple[int, int]] = {}
        for operation in self.flow.operations:
            if operation.name != "cat" or not operation.arguments or not isinstance(operation.arguments[0], tuple):
                continue
            (parts, axis), position = (*operation.arguments, 0)[:2], 0
            for part in parts:
                shape = self.flow[part.index].shape if isinstance(part, Operand) else None
                if shape is None or not isinstance(axis, int):
                    break
                if self.flow[part.index].name == "parameter":
                    places[part.index] = (position, shape[axis])
                position += shape[axis]
        return places

    def _pooling(self, operation: Operation) -> Step:
        (source, *_), name, arguments = operation.parents, operation.name, operation.arguments[1:]
        if name == "cumsum" or "fft" in name:
            return Step("other", (source,))
        kind: Kind = "max_pool" if "max" in name else "average_pool"
        module: nn.Module | None = None
        if "adaptive" in name or name == "mean" or not (arguments and isinstance(arguments[0], tuple)):
            size = self._ratio(source, operation)
            module = _TorchOperation(name, _plain(operation)) if kind == "average_pool" else None
        else:
            what, axes = "Max" if kind == "max_pool" else "Avg", 3 if "3d" in name else 2 if "2d" in name else 1
            # The argument after the dilation of torch's module is return_indices.
            returned = (False,) if what == "Max" and arguments[4:] else ()
            module = getattr(nn, f"{what}Pool{axes}d")(*arguments[:4], *returned, *arguments[4:])
            # Neighbours are neither equal nor independent, so n of them count as √n.
            size = sqrt(window_size(module))
        return Step(kind, (source,), module=module, size=max(size, 1.0), shape=self.flow[source].shape)

    def _product(self, index: int, operation: Operation) -> Step:
        value = passed_on(self.layers, index)
        first = value[0] if value else operation.parents[0]
        others = tuple(parent for parent in operation.parents if parent != first)
        if operation.name != "mul" and len(value) == 1:
            # With a mask, a dropout or a causal attention the logits are not those of all positions.
            plain = operation.name in ATTENTION and not any(_plain(operation)) and not operation.fixed
            logits = others if plain and len(others) == 2 else ()
            positions = (self.flow[first].shape or ())[-2:-1] or (1,)
            return Step("attention", (first, *logits), size=float(positions[0]))
        if operation.name == "mul" and others:
            return Step("gate", (first, *others[:1]))
        return Step("other", (first,))

    def _ratio(self, source: int, operation: Operation) -> float:
        """Return the ratio of input to output elements of an operation; unknown numbers count as 1."""
        before, after = (1 if shape is None else prod(shape) for shape in (self.flow[source].shape, operation.shape))
        return before / after


def _plain(operation: Operation) -> tuple[Any, ...]:
    """Return the arguments that are not tensors."""
    return tuple(argument for argument in operation.arguments if not isinstance(argument, (Operand, Fixed)))
