"""An exported program read as a dataflow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from normless.residual.graph import Dataflow, Fixed, Operand, Operation

# They read their argument's shape and kind, never its values.
_SHAPE_ONLY = {
    "new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "zeros_like", "ones_like", "full_like",
    "rand_like", "randn_like", "randint_like", "sym_size", "sym_numel", "sym_stride", "_assert_tensor_metadata",
    "_assert_scalar",
}  # fmt: skip
_ROOT = {"sqrt", "rsqrt"}
_RANDOM = {"bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform"}  # fmt: skip


def read_dataflow(program: ExportedProgram) -> Dataflow:
    """The operations of an exported program that depend on its inputs."""
    return _Reader(program).flow


class _Reader:
    """Turns the nodes of an exported graph into operations."""

    def __init__(self, program: ExportedProgram) -> None:
        self.index: dict[Node, int] = {}
        self.fixed: dict[Node, Fixed] = {}
        self.flow = Dataflow()
        signature = program.graph_signature
        inputs = {name for name in signature.user_inputs if isinstance(name, str)}
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self.flow.outputs = frozenset(self.index[end] for end in node.all_input_nodes if end in self.index)
            elif node.name in inputs:
                if _shape(node) is not None:
                    self._append(node, Operation("input", shape=_shape(node), floating=_is_floating(node)))
            elif node.name in signature.inputs_to_parameters:
                self.fixed[node] = Fixed(parameters=(signature.inputs_to_parameters[node.name],))
            elif node.name in signature.inputs_to_buffers:
                self.fixed[node] = Fixed(buffers=(signature.inputs_to_buffers[node.name],))
            else:
                self.fixed[node] = Fixed()

    def _append(self, node: Node, operation: Operation) -> None:
        self.index[node] = len(self.flow.operations)
        self.flow.operations.append(operation)

    def _call(self, node: Node) -> None:
        name = operation_name(node)
        in_place = name.endswith("_") and not name.startswith("__")
        name = name.rstrip("_")
        if name == "cat":
            self._tokens(node)
        sources = [] if name in _SHAPE_ONLY else node.all_input_nodes
        parents = tuple(self.index[source] for source in sources if source in self.index)
        fixed = [self.fixed[source] for source in sources if source in self.fixed]
        parameters = tuple(dict.fromkeys(name for source in fixed for name in source.parameters))
        if not parents:
            self.fixed[node] = Fixed(
                parameters=parameters,
                buffers=tuple(dict.fromkeys(name for source in fixed for name in source.buffers)),
                random=name in _RANDOM or any(source.random for source in fixed),
                rooted=name in _ROOT or any(source.rooted for source in fixed),
            )
            return
        operation = Operation(
            name=name,
            parents=parents,
            parameters=parameters,
            modules=modules_around(node),
            call=_call_number(node),
            shape=_shape(node),
            floating=_is_floating(node),
            arguments=self._plain((*node.args, *node.kwargs.values())),
            in_place=in_place,
            subgraph=isinstance(node.target, torch._ops.HigherOrderOperator),
        )
        self._append(node, operation)

    def _tokens(self, node: Node) -> None:
        """Make operations of the learned tensors that a concatenation joins to activations."""
        sources = node.all_input_nodes
        if any(source in self.index for source in sources):
            for source in sources:
                if source in self.fixed and self.fixed[source].parameters:
                    parameters = self.fixed.pop(source).parameters
                    self._append(source, Operation("parameter", parameters=parameters, shape=_shape(source)))

    def _plain(self, arguments: Iterable[Any]) -> tuple[Any, ...]:
        def plain(value: Any) -> Any:
            if isinstance(value, Node):
                return Operand(self.index[value]) if value in self.index else self.fixed.get(value)
            if isinstance(value, (list, tuple)):
                return self._plain(value)
            return value if isinstance(value, (int, float, bool, str)) else None

        return tuple(plain(value) for value in arguments)


def operation_name(node: Node) -> str:
    """The name of a node's operation without overload, ending in an underscore if in place; empty for no call."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return "" if isinstance(target, str) else getattr(target, "__name__", str(target)).rstrip("_")


def _shape(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.is_floating_point()


def modules_around(node: Node) -> tuple[str, ...]:
    """Qualified names of the modules whose forward runs a node, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    return tuple(name.removeprefix("L['self']").removeprefix(".") for name, _ in stack.values()) or ("",)


def _call_number(node: Node) -> int:
    """Which call of its module a node belongs to: export marks the second `@1`."""
    stack = node.meta.get("nn_module_stack") or {}
    return max((int(number) for key in stack for number in re.findall(r"@(\d+)", str(key))), default=0)
