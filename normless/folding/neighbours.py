"""Which layer a frozen norm reads alone, and which layer alone reads it, in one exported graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from normless.folding.report import Side
from normless.nn import FrozenAffine
from normless.residual.layers import Names
from normless.residual.reader import modules_around, operation_name

_LAYERS = {"linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}
_RESHAPES_LIKE_ANOTHER = {"reshape_as", "view_as"}
# They keep the order of all values; the shapes say which axis the channels are on.
_RESHAPES = _RESHAPES_LIKE_ANOTHER | {
    "view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "alias",
}  # fmt: skip


class Neighbour(NamedTuple):
    """A layer that a norm can be folded into, and the side of the norm that it is on.

    `sees_border` says that some of its outputs see fewer inputs than others, or zeros in place of inputs.
    """

    layer: str
    side: Side
    sees_border: bool


class Neighbours:
    """The layers next to the frozen norms of a network exported in one mode, by their first qualified names."""

    def __init__(self, model: nn.Module, program: ExportedProgram) -> None:
        self.names = Names(model)
        self.holders = Counter(
            id(parameter) for module in model.modules() for parameter in module._parameters.values()
        )
        signature = program.graph_signature
        self.parameter: dict[Node, str] = {}
        self.reads: Counter[int] = Counter()
        self.affines: dict[str, list[Node]] = defaultdict(list)
        for node in program.graph.nodes:
            name = signature.inputs_to_parameters.get(node.name) if node.op == "placeholder" else None
            if name is not None:
                self.parameter[node] = name
                self.reads[id(self.names.parameters[name])] += len(_readers(node))
            elif operation_name(node) == "addcmul" and isinstance(self.names.modules[_home(node)], FrozenAffine):
                self.affines[self.names.canonical(_home(node))].append(node)

    def runs(self, path: str) -> bool:
        """Whether the norm at `path` runs."""
        return path in self.affines

    def uses(self, layer: str) -> bool:
        """Whether anything reads the weight of the layer at `layer`."""
        return self.reads[id(self.names.modules[layer].weight)] > 0

    def find(self, path: str, side: Side) -> Neighbour | str:
        """The layer on one side of the norm at `path`, or why there is none to fold into, in words."""
        if len(self.affines[path]) > 1:
            return "the norm runs at several places"
        (node,) = self.affines[path]
        return self._before(node) if side == "before" else self._after(node)

    def _words(self, node: Node) -> str:
        """An operation for a sentence: its name and the module it runs in."""
        name, home = operation_name(node).rstrip("_"), _home(node)
        if any(node in affines for affines in self.affines.values()):
            return f"the norm {home}"
        return f"{name} of {home}" if home else name

    def _alone(self, parameter: str) -> bool:
        """Whether a parameter is one module's own and read once."""
        key = id(self.names.parameters[parameter])
        return self.holders[key] == 1 and self.reads[key] == 1

    def _before(self, affine: Node) -> Neighbour | str:
        node: Any = affine.args[1]
        axis = 1
        while operation_name(node) not in _LAYERS:
            if node.op == "placeholder":
                return "it reads the network's input"
            moved = _moved(node, axis, back=True)
            if moved is None:
                return f"it reads {self._words(node)}"
            if len(_readers(node)) > 1:
                return f"other operations read the output of {self._words(node)} too"
            node, axis = node.args[0], moved
        if len(_readers(node)) > 1:
            return f"other operations read the output of {self._words(node)} too"
        return self._layer(node, axis, "before")

    def _after(self, affine: Node) -> Neighbour | str:
        node, axis = affine, 1
        while True:
            readers = _readers(node)
            if len(readers) != 1:
                return "several operations read it" if readers else "nothing reads it"
            (reader,) = readers
            if reader.op == "output":
                return "it is the network's output"
            if operation_name(reader) in _LAYERS and reader.args[0] is node:
                if _overwrites_between(affine, reader):
                    return "values are overwritten in place before it is read"
                return self._layer(reader, axis, "after")
            moved = _moved(reader, axis, back=False)
            if moved is None:
                return f"{self._words(reader)} reads it"
            node, axis = reader, moved

    def _layer(self, node: Node, axis: int, side: Side) -> Neighbour | str:
        """The module whose weight an operation applies, where it is free to take other values."""
        weight, bias = (*node.args[1:3], None)[:2]
        name = self.parameter.get(weight) if isinstance(weight, Node) else None
        if name is None:
            return f"the weight of {self._words(node)} is computed in the forward pass"
        if not self._alone(name):
            return f"the weight of {self._words(node)} is used at several places"
        path = self.names.canonical(name.rpartition(".")[0])
        module = self.names.modules[path]
        if not isinstance(module, (_ConvNd, nn.Linear)) or self.names.canonical(_home(node)) != path:
            return f"{self._words(node)} does not run in the layer that owns the weight {name}"
        bias_name = self.parameter.get(bias) if isinstance(bias, Node) else None
        if bias is not None and bias_name is None:
            return f"the bias of {path} is computed in the forward pass"
        if (bias_name is None) != (module.bias is None) or (bias_name is not None and not self._alone(bias_name)):
            return f"the bias of {path} is used elsewhere"
        positions = 0 if isinstance(module, nn.Linear) else len(module.kernel_size)
        whole = _shape(node if side == "before" else node.args[0])
        if axis != len(whole) - 1 - positions:
            return f"the channels of {path} are not the norm's"
        return Neighbour(path, side, side == "after" and (isinstance(module, _ConvTransposeNd) or _pads(node)))


def _readers(node: Node) -> list[Node]:
    """The operations that read a node's values, and not only its shape."""
    readers = [user for user in node.users if not operation_name(user).startswith(("_assert", "sym_"))]
    return [user for user in readers if operation_name(user) not in _RESHAPES_LIKE_ANOTHER or user.args[0] is node]


def _home(node: Node) -> str:
    """A qualified name of the innermost module whose forward runs a node."""
    return modules_around(node)[-1]


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _pads(convolution: Node) -> bool:
    """Whether a convolution puts zeros around its input."""
    padding: Any = convolution.args[4] if len(convolution.args) > 4 else ()
    if padding == "same":
        return max(_shape(convolution.args[1])[2:]) > 1
    return padding != "valid" and any(padding)


def _overwrites_between(first: Node, last: Node) -> bool:
    """Whether an operation from one to another, in execution order, changes a tensor in place."""
    nodes = list(first.graph.nodes)
    between = (node.target for node in nodes[nodes.index(first) + 1 : nodes.index(last) + 1])
    return any(isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable for target in between)


def _moved(node: Node, axis: int, *, back: bool) -> int | None:
    """The axis of an operation's output that an axis of its input becomes, or back; None where channels mix."""
    if operation_name(node) in ("permute", "transpose"):
        # Applied to lengths 0, 1, 2, …, it shows where each axis goes.
        numbered, permute = torch.empty(tuple(range(len(_shape(node)))), device="meta"), cast(Any, node.target)
        order = list(permute(numbered, *node.args[1:]).shape)
        return order[axis] if back else order.index(axis)
    idle_dropout = operation_name(node) == "dropout" and (node.args[1] == 0 or not node.args[2])
    if not idle_dropout and operation_name(node) not in _RESHAPES:
        return None
    shape, other = (_shape(node), _shape(node.args[0])) if back else (_shape(node.args[0]), _shape(node))
    # The axis that runs over the same values has the same length and as many values inside.
    inner = prod(shape[axis + 1 :])
    axes = (at for at in range(len(other)) if other[at] == shape[axis] and prod(other[at + 1 :]) == inner)
    return next(axes, None)
