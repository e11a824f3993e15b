"""Read the tape of a forward pass as a dataflow."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import getitem
from typing import Any

import torch
from torch import nn

from normless.recording._passes import recorded
from normless.recording._tape import Node, Tape
from normless.residual._degrees import Degrees, degrees_of
from normless.residual._graph import Dataflow, Fixed, Operand, Operation
from normless.residual._operations import LAYOUT, MOVING, RANDOM, SHAPE_ONLY, SQUARE_ROOT

_TERMS = dict.fromkeys(("add", "sub"), ("self", "other")) | dict.fromkeys(("addmm", "addcmul", "baddbmm"), ("self",))


def flow_of(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Dataflow:
    """Run a network in its mode, and read the operations that depend on its inputs.

    Raises:
        InputsError: a layer does not take its input.
        UnresolvedStructureError: the forward pass fails.
    """
    return read_dataflow(recorded(model, inputs, kwargs))


def read_dataflow(tape: Tape) -> Dataflow:
    """Read the operations of a tape that depend on the inputs of the network."""
    return _Reader(tape).flow


class _Reader:
    """Convert the nodes of a tape to operations."""

    def __init__(self, tape: Tape) -> None:
        self.index: dict[Node, int] = {}
        self.fixed: dict[Node, Fixed] = {}
        # The first concatenation or selection of the same parts.
        self.joined: dict[Any, Node] = {}
        self.flow = Dataflow(calls=tape.recorder.calls, follows_values=tape.follows_values, written=tape.written)
        for node in tape.nodes:
            if node.kind == "call":
                self._call(node)
            elif node.kind == "input":
                self._append(node, "input")
            elif node.kind == "parameter":
                self.fixed[node] = Fixed((node.name,), is_parameter=True, degrees=((node.name, 1.0),))
            else:
                self.fixed[node] = Fixed(buffers=(node.name,) if node.kind == "buffer" else ())
        self.flow.outputs = frozenset(self.index[end] for end in tape.outputs if end in self.index)

    def _append(self, node: Node, name: str, **properties: Any) -> None:
        """Make a node the next operation of the flow."""
        # A size that depends on values is 0 if the example inputs select nothing.
        shape = node.shape if node.shape is not None and all(node.shape) else None
        self.index[node] = len(self.flow.operations)
        self.flow.operations.append(Operation(name, shape=shape, floating=node.floating, **properties))

    def _same(self, node: Node, source: Any) -> None:
        """Treat a node as a second name of `source`."""
        if source in self.index:
            self.index[node] = self.index[source]
        else:
            self.fixed[node] = self.fixed.get(source, Fixed())

    def _whole(self, node: Node, name: str) -> Node | None:
        """Return the activation of which a node is a whole copy: a slice of all of it, or what is copied over it."""
        source = node.args[1] if name == "copy" and len(node.args) > 1 else node.args[0] if name == "slice" else None
        if not isinstance(source, Node) or source not in self.index or node.shape is None:
            return None
        return source if source.shape == node.shape else None

    def _call(self, node: Node) -> None:
        self.flow.called.update(node.modules)
        # Unused results, as of an LSTM, are omitted.
        if node.target is getitem and not node.readers:
            return
        in_place = node.name.endswith("_") and not node.name.startswith("__")
        name = node.name.rstrip("_")
        if name == "add" and node.args[1:] == (0,) and not in_place:
            # The start of Python's sum of a list.
            self._same(node, node.args[0])
            return
        if (whole := self._whole(node, name)) is not None:
            self._same(node, whole)
            return
        if name == "cat":
            self._tokens(node)
        if name in {"cat", "index"}:
            given = self._plain(node.args)
            # Repeated concatenations or selections of the same activations are the same activation.
            if not any(isinstance(part, Fixed) for part in chain.from_iterable(map(_several, given))):
                repeated = self.joined.setdefault((name, given), node)
                if repeated is not node:
                    self._same(node, repeated)
                    return
        sources = [] if name in SHAPE_ONLY else list(dict.fromkeys(node.inputs()))
        parents = tuple(self.index[source] for source in sources if source in self.index)
        fixed = [self.fixed[source] for source in sources if source in self.fixed]
        parameters = tuple(dict.fromkeys(name for source in fixed for name in source.parameters))
        if not parents:
            self._fix(node, name, fixed, parameters)
            return
        self._append(
            node,
            name,
            parents=parents,
            parameters=parameters,
            modules=node.modules,
            runs=node.runs,
            arguments=self._plain((*node.args, *node.kwargs.values())),
            in_place=in_place,
            subgraph=isinstance(node.target, torch._ops.HigherOrderOperator),
            added=self._added(node, name),
            made_by=node.call,
        )

    def _fix(self, node: Node, name: str, fixed: list[Fixed], parameters: tuple[str, ...]) -> None:
        """Note a tensor that does not depend on the inputs of the network."""
        numbers = [number for number in node.args if name in {"add", "rsub"} and isinstance(number, (int, float))]
        self.fixed[node] = Fixed(
            parameters=parameters,
            buffers=tuple(dict.fromkeys(name for source in fixed for name in source.buffers)),
            random=name in RANDOM or any(source.random for source in fixed),
            rooted=name in SQUARE_ROOT or any(source.rooted for source in fixed),
            offset=sum(numbers) + sum(source.offset for source in fixed),
            degrees=self._degrees(node, name) if parameters else (),
            moves=self._moves(node, name, fixed),
        )

    def _moves(self, node: Node, name: str, fixed: list[Fixed]) -> tuple[Operation, ...] | None:
        """Return the operations that made a tensor of one parameter by rearranging it, None if others did."""
        if name not in MOVING or len(fixed) != 1 or fixed[0].moves is None:
            return None
        arguments = self._plain((*node.args, *node.kwargs.values()))
        return (*fixed[0].moves, Operation(name, shape=node.shape, arguments=arguments))

    def _degrees(self, node: Node, name: str) -> tuple[tuple[str, float], ...]:
        """Return the degrees of homogeneity of a tensor that is computed from parameters alone."""

        def read(argument: Any) -> Degrees | None:
            return dict(self.fixed[argument].degrees) if argument in self.fixed else None

        if name == "getitem" and node.args[1] == 0 and node.args[0].name == "var_mean":
            name = "var"
        return tuple(degrees_of(name, node.args, read, name in LAYOUT).items())

    def _added(self, node: Node, name: str) -> tuple[str, ...]:
        """Return the parameters that a node adds to its result, by the argument names of its operation."""
        schema = node.target._schema.arguments if isinstance(node.target, torch._ops.OpOverload) else []
        given = {**dict(zip((parameter.name for parameter in schema), node.args, strict=False)), **node.kwargs}
        terms = [given.get("bias"), *(given.get(argument) for argument in _TERMS.get(name, ()))]
        fixed = (self.fixed[term] for term in terms if isinstance(term, Node) and term in self.fixed)
        return tuple(dict.fromkeys(chain.from_iterable(term.parameters for term in fixed)))

    def _tokens(self, node: Node) -> None:
        """Convert the learned tensors that a concatenation joins to activations to operations."""
        if any(source in self.index for source in node.inputs()):
            for source in node.inputs():
                self._activate(source)

    def _activate(self, node: Node) -> None:
        """Convert a learned tensor, and the nodes that compute from it alone, as the norm of a class token."""
        if node in self.fixed and self.fixed[node].parameters:
            parameters = self.fixed.pop(node).parameters
            # A copy of a token for each example is the token.
            is_copy = node.name in LAYOUT | {"expand", "repeat"}
            source = node.args[0] if node.kind == "call" and not is_copy else None
            if isinstance(source, Node):
                self._activate(source)
            if source in self.index:
                self._call(node)
            else:
                self._append(node, "parameter", parameters=parameters)

    def _plain(self, value: Any) -> Any:
        """Convert an argument to data: nodes to `Operand` or `Fixed`, sequences to tuples, others as they are."""
        if isinstance(value, Node):
            return Operand(self.index[value]) if value in self.index else self.fixed.get(value)
        return tuple(map(self._plain, value)) if isinstance(value, tuple) else value


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
