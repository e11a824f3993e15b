"""Follow the backward pass: the gradients that the nodes of each call read and pass on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from normless._internal.reach import reachable
from normless.doctor.facts.flow import Call
from normless.doctor.facts.tracer import Seen, Tracer

Gradients = tuple[Tensor | None, ...]


class BackwardTracer(Tracer):
    """Records which call made each node of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[Any, Call] = {}

    def on_call(self, seen: Seen) -> None:
        """Record the nodes that a call added."""
        super().on_call(seen)
        pending = [tensor.grad_fn for tensor in seen.made]
        while pending:
            node: Any = pending.pop()
            # Nodes without others before them are those of parameters.
            if node is not None and node not in self.nodes and node.next_functions:
                self.nodes[node] = seen.call
                pending += [before for before, _ in node.next_functions]

    @contextmanager
    def hooked(self, receive: Callable[[Call, Any, Gradients, Gradients], None]) -> Iterator[None]:
        """Call `receive` with each call, its node, and the gradients of its inputs and results in a backward pass."""
        with ExitStack() as stack:
            for node, call in self.nodes.items():
                stack.enter_context(node.register_hook(partial(receive, call, node)))
            yield


def parameters_behind(node: Any) -> set[int]:
    """Return the identities of the parameters that a node of the backward pass leads to."""
    nodes = reachable([node], lambda node: (before for before, _ in node.next_functions if before is not None))
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}
