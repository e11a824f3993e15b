"""Read the graph of an exported network as a dataflow."""

from __future__ import annotations

import re
from itertools import chain
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from normless.residual.degrees import Degrees, degrees_of
from normless.residual.exporting import CALL, CALLS, FOLLOWS_VALUES
from normless.residual.graph import Dataflow, Fixed, Operand, Operation
from normless.residual.operations import LAYOUT, PART, RANDOM, REGION, SHAPE_ONLY, SQUARE_ROOT

_TERMS = dict.fromkeys(("add", "sub"), ("self", "other")) | dict.fromkeys(("addmm", "addcmul", "baddbmm"), ("self",))


def read_dataflow(program: ExportedProgram) -> Dataflow:
    """Read the operations of an exported program that depend on its inputs."""
    return _Reader(program).flow


class _Reader:
    """Convert the nodes of an exported graph to operations."""

    def __init__(self, program: ExportedProgram) -> None:
        self.index: dict[Node, int] = {}
        self.fixed: dict[Node, Fixed] = {}
        # Tensors that were constants before activations were written into them.
        self.built: set[Node] = set()
        self.results: dict[Node, tuple[Any, ...]] = {}
        # The first concatenation of the same parts.
        self.joined: dict[Any, Node] = {}
        meta = program.graph_module.meta
        self.flow = Dataflow(calls=meta.get(CALLS, []), follows_values=FOLLOWS_VALUES in meta)
        signature = program.graph_signature
        # The signature computes these at each access.
        inputs = {name for name in signature.user_inputs if isinstance(name, str)}
        parameters, buffers = signature.inputs_to_parameters, signature.inputs_to_buffers
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self.flow.outputs = frozenset(self.index[end] for end in node.all_input_nodes if end in self.index)
            elif node.op == "get_attr":
                continue
            elif node.name in inputs:
                if isinstance(node.meta.get("val"), Tensor):
                    self._append(node, "input")
            elif node.name in parameters:
                name = parameters[node.name]
                self.fixed[node] = Fixed((name,), is_parameter=True, degrees=((name, 1.0),))
            elif node.name in buffers:
                self.fixed[node] = Fixed(buffers=(buffers[node.name],))
            else:
                self.fixed[node] = Fixed()

    def _append(self, node: Node, name: str, **properties: Any) -> None:
        """Make a node the next operation of the flow."""
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            # A size that depends on values is not an integer, or it is 0 if the example inputs select nothing.
            sizes = [size if isinstance(size, int) else size.node.maybe_as_int() for size in value.shape]
            shape = tuple(sizes) if all(sizes) else None
            properties |= {"shape": shape, "floating": value.is_floating_point()}
        self.index[node] = len(self.flow.operations)
        self.flow.operations.append(Operation(name, **properties))

    def _same(self, node: Node, source: Any) -> None:
        """Treat a node as a second name of `source`."""
        if source in self.index:
            self.index[node] = self.index[source]
        elif source in self.fixed or not isinstance(source, Node):
            self.fixed[node] = self.fixed.get(source, Fixed())

    def _region(self, node: Node) -> bool:
        """Inline the graph of a `no_grad`, autocast or checkpointed region; return False for any other node."""
        if getattr(node.target, "__name__", "") not in REGION:
            return False
        bodies = [argument for argument in node.args if isinstance(argument, Node) and argument.op == "get_attr"]
        body: Any = node.graph.owning_module.get_submodule(str(bodies[0].target))  # type: ignore[union-attr]
        given = iter(node.args[node.args.index(bodies[0]) + 1 :])
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                self._same(inner, next(given))
            elif inner.op == "call_function":
                self._call(inner)
            elif inner.op == "output":
                results: Any = inner.args[0]
                self.results[node] = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        return True

    def _call(self, node: Node) -> None:
        self.flow.called.update(modules_around(node))
        # Unused results, as of an LSTM, are omitted.
        if self._region(node) or (node.target is getitem and not node.users):
            return
        if node.target is getitem and node.args[0] in self.results:
            region, place = cast(tuple[Node, int], node.args)
            self._same(node, self.results[region][place])
            return
        name = operation_name(node)
        in_place = name.endswith("_") and not name.startswith("__")
        name = name.rstrip("_")
        if name == "add" and node.args[1:] == (0,) and not in_place:
            # The start of Python's sum of a list.
            self._same(node, node.args[0])
            return
        if name == "cat":
            self._tokens(node)
            given = self._plain(node.args)
            # Repeated concatenations of the same activations are the same activation.
            if all(isinstance(part, Operand) for part in given[0]):
                repeated = self.joined.setdefault(given, node)
                if repeated is not node:
                    self._same(node, repeated)
                    return
        sources = [] if name in SHAPE_ONLY else node.all_input_nodes
        parents = tuple(self.index[source] for source in sources if source in self.index)
        fixed = [self.fixed[source] for source in sources if source in self.fixed]
        parameters = tuple(dict.fromkeys(name for source in fixed for name in source.parameters))
        if not parents:
            numbers = [
                argument for argument in node.args if name in {"add", "rsub"} and isinstance(argument, (int, float))
            ]
            self.fixed[node] = Fixed(
                parameters=parameters,
                buffers=tuple(dict.fromkeys(name for source in fixed for name in source.buffers)),
                random=name in RANDOM or any(source.random for source in fixed),
                rooted=name in SQUARE_ROOT or any(source.rooted for source in fixed),
                offset=sum(numbers) + sum(source.offset for source in fixed),
                degrees=self._degrees(node, name) if parameters else (),
            )
            return
        number = (node.meta.get("custom") or {}).get(CALL)
        # Export marks the second call of a module with `@1`.
        calls = (re.findall(r"@(\d+)", str(key)) for key in node.meta.get("nn_module_stack") or ())
        self._append(
            node,
            name,
            parents=parents,
            parameters=parameters,
            modules=modules_around(node),
            call=max(map(int, chain.from_iterable(calls)), default=0),
            arguments=self._plain((*node.args, *node.kwargs.values())),
            in_place=in_place,
            subgraph=isinstance(node.target, torch._ops.HigherOrderOperator),
            added=self._added(node, name),
            made_by=None if number is None else self.flow.calls[number],
        )
        if in_place:
            self._write(node)

    def _degrees(self, node: Node, name: str) -> tuple[tuple[str, float], ...]:
        """Return the degrees of homogeneity of a tensor that is computed from parameters alone."""

        def read(argument: Any) -> Degrees | None:
            return dict(self.fixed[argument].degrees) if argument in self.fixed else None

        if name == "getitem" and node.args[1] == 0 and operation_name(cast(Node, node.args[0])) == "var_mean":
            name = "var"
        return tuple(degrees_of(name, node.args, read, name in LAYOUT).items())

    def _write(self, node: Node) -> None:
        """Replace a constant tensor into which a node writes, possibly through views, by the node's result."""
        views, base = [], node.args[0]
        while isinstance(base, Node):
            views.append(base)
            base = base.args[0] if operation_name(base) in LAYOUT | PART else None
        if views[-1].op == "call_function" and (views[-1] in self.fixed or views[-1] in self.built):
            self.built.add(views[-1])
            for view in views:
                self.fixed.pop(view, None)
                self.index[view] = self.index[node]

    def _added(self, node: Node, name: str) -> tuple[str, ...]:
        """Return the parameters that a node adds to its result, by the argument names of its operation."""
        schema = node.target._schema.arguments if isinstance(node.target, torch._ops.OpOverload) else []
        given = {**dict(zip((parameter.name for parameter in schema), node.args, strict=False)), **node.kwargs}
        terms = [given.get("bias"), *(given.get(argument) for argument in _TERMS.get(name, ()))]
        fixed = (self.fixed[term] for term in terms if isinstance(term, Node) and term in self.fixed)
        return tuple(dict.fromkeys(chain.from_iterable(term.parameters for term in fixed)))

    def _tokens(self, node: Node) -> None:
        """Convert the learned tensors that a concatenation joins to activations to operations."""
        if any(source in self.index for source in node.all_input_nodes):
            for source in node.all_input_nodes:
                self._activate(source)

    def _activate(self, node: Node) -> None:
        """Convert a learned tensor, and the nodes that compute from it alone, as the norm of a class token."""
        if node in self.fixed and self.fixed[node].parameters:
            parameters = self.fixed.pop(node).parameters
            # A copy of a token for each example is the token.
            is_copy = operation_name(node) in LAYOUT | {"expand", "repeat"}
            source = node.args[0] if node.op == "call_function" and not is_copy else None
            if isinstance(source, Node):
                self._activate(source)
            if source in self.index:
                self._call(node)
            else:
                self._append(node, "parameter", parameters=parameters)

    def _plain(self, value: Any) -> Any:
        """Convert an argument to data: nodes to `Operand` or `Fixed`, sequences to tuples, other objects to None."""
        if isinstance(value, Node):
            return Operand(self.index[value]) if value in self.index else self.fixed.get(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._plain, value))
        return value if isinstance(value, (int, float, bool, str)) else None


def operation_name(node: Node) -> str:
    """Return the name of a node's operation without overload, ending in an underscore if in place, or ""."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return "" if isinstance(target, str) else getattr(target, "__name__", str(target)).rstrip("_")


def modules_around(node: Node) -> tuple[str, ...]:
    """Return the qualified names of the modules in whose forward a node runs, outermost first."""
    # A slice of a Sequential, as model.features[1:4], is not a module of the network; its children are.
    names = (re.sub(r"\.slice\([^)]*\)", "", name) for name, _ in (node.meta.get("nn_module_stack") or {}).values())
    return tuple(name.removeprefix("L['self']").removeprefix(".") for name in names) or ("",)
