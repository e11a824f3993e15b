"""One module's forward code traced, an operator in it replaced by a child module, and put back as code."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Graph, Node

from normless.errors import LiftError
from normless.lifting.arguments import Arguments
from normless.lifting.calls import Call, evaluating, unfused
from normless.lifting.rewritten import rewrite

_ADDITIONS = (operator.add, operator.iadd, torch.add)
_ADDITION_METHODS = ("add", "add_", "__add__", "__radd__", "__iadd__")


class Function(nn.Module):
    """Applies a function that forward code applied, with the same further arguments; never in place.

    Args:
        function: the function, or the name of a tensor's method.
        args, kwargs: its arguments after the tensor.
    """

    def __init__(self, function: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if isinstance(function, str):
            function = getattr(Tensor, function.rstrip("_") if not function.startswith("__") else function)
        elif function.__name__.endswith("_") and hasattr(torch, function.__name__.rstrip("_")):
            function = getattr(torch, function.__name__.rstrip("_"))
        self.function = function
        self.args = args
        self.kwargs = {name: value for name, value in (kwargs or {}).items() if name != "inplace"}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        y: Tensor = self.function(x, *self.args, **self.kwargs)
        return y

    def extra_repr(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", self.function))


class _OwnCode(fx.Tracer):
    """Traces a module's own forward as it runs with some arguments; every child is a leaf."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        self.arguments = arguments

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """A placeholder for every argument of tensors; what is none keeps its value."""
        placeholders = [self.create_proxy("placeholder", name, (), {}) for name in self.arguments.tensors]
        return self.arguments.call, [self.root, *placeholders]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class Lifter:
    """The forward code of one module under rewriting; its children are leaves, so only its own forward changes.

    A `BasicBlock` becomes a subclass of `BasicBlock` with the same parameters and children, a new child and a new
    forward.

    Args:
        module: whose code it is; changed by `finish` alone.
        call: how it is called, from `captured_calls`.

    Raises:
        LiftError: its code cannot be traced, or does other things in training than in evaluation.
    """

    def __init__(self, module: nn.Module, call: Call) -> None:
        self.module = module
        self.children: dict[str, nn.Module] = {}
        self._arguments = Arguments(module, call)
        self._head = self._arguments.head()
        self.graph = _traced(module, self._arguments)
        self.values = _values(module, self.graph, self._arguments)

    def additions(self) -> list[Node]:
        """The additions of two tensors in the code, in execution order."""
        return [node for node in self.graph.nodes if self._is_addition(node)]

    def functions(self, name: str) -> list[Node]:
        """The calls of the functional operation of this name, `relu` for `F.relu`, `torch.relu` and `x.relu_()`."""
        return [
            node
            for node in self.graph.nodes
            if node.op in ("call_function", "call_method")
            and getattr(node.target, "__name__", str(node.target)).strip("_") == name
            and isinstance(self.values.get(node), Tensor)
        ]

    def calls_of(self, child: str) -> list[Node]:
        """The calls of one child module, in execution order."""
        return [node for node in self.graph.nodes if node.op == "call_module" and node.target == child]

    def replace(self, node: Node, name: str, child: nn.Module, arguments: tuple[Node, ...]) -> str:
        """Let a new child compute `node` from other nodes; returns the name it got, `name` or `name_2`, …"""
        taken = {*dict(self.module.named_children()), *self.children, *vars(self.module)}
        number, chosen = 1, name
        while chosen in taken or hasattr(type(self.module), chosen):
            number += 1
            chosen = f"{name}_{number}"
        self.children[chosen] = child
        with self.graph.inserting_before(node):
            new = self.graph.create_node("call_module", chosen, arguments)
        self.values[new] = self.values.get(node)
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)
        return chosen

    def bypass(self, node: Node) -> None:
        """Let the code pass on the first argument of `node` in its place."""
        first = node.args[0]
        assert isinstance(first, Node)
        node.replace_all_uses_with(first)
        self.graph.erase_node(node)
        self.graph.eliminate_dead_code()

    def finish(self) -> None:
        """Give the module its new children and its new forward."""
        for name, child in self.children.items():
            self.module.add_module(name, child.train(self.module.training))
        rewrite(self.module, self._head, self.graph)

    def _is_addition(self, node: Node) -> bool:
        added = (node.op == "call_function" and node.target in _ADDITIONS) or (
            node.op == "call_method" and node.target in _ADDITION_METHODS
        )
        if not added or len(node.args) < 2:
            return False
        operands = [argument for argument in node.args[:2] if isinstance(argument, Node)]
        # A parameter is no part of the dataflow from the inputs: what is added to it is no sum of two activations.
        return len({*operands}) == 2 and all(
            one.op != "get_attr" and isinstance(self.values.get(one), Tensor) for one in operands
        )


def _traced(module: nn.Module, arguments: Arguments) -> Graph:
    graphs = []
    training = module.training
    try:
        for mode in (not training, training):
            module.training = mode
            with unfused(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graphs.append(_OwnCode(arguments).trace(module))
    except Exception as error:
        raise LiftError(
            f"its forward code cannot be traced ({type(error).__name__}: {_first_line(error)})"
        ) from error
    finally:
        module.training = training
    if graphs[0].python_code("self").src != graphs[1].python_code("self").src:
        raise LiftError(
            "its forward code does other things in training than in evaluation, so it cannot be rewritten"
        )
    return graphs[1]


def _values(module: nn.Module, graph: Graph, arguments: Arguments) -> dict[Node, Any]:
    """Every node's value on the call's arguments."""
    copied = fx.GraphModule(module, graph)
    interpreter = fx.Interpreter(copied, garbage_collect_values=False)
    try:
        with evaluating(module):
            interpreter.run(*arguments.tensors.values())
    except Exception as error:
        raise LiftError(f"its traced forward does not run ({type(error).__name__}: {_first_line(error)})") from error
    return dict(zip(graph.nodes, map(interpreter.env.get, copied.graph.nodes), strict=True))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:200]
