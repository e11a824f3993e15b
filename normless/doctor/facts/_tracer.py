"""Follow the dataflow of passes and losses, forward and backward, and the tensors in nested values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from normless._internal.reach import reachable
from normless.doctor.facts._flow import LOSS, PassFlow, TensorCall
from normless.exclusive import exclusive
from normless.probes import Loss
from normless.probes.hooks._losses import loss_of
from normless.probes.hooks._observe import compute_output
from normless.recording._modules import ModuleRun, Observer

# What a network or a loss raises for arguments that it does not take.
REFUSED = (RuntimeError, ValueError, TypeError, IndexError)
Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Seen:
    """A call with its arguments, the tensors that it made, what `before_call` returned, and whether the loss runs."""

    call: TensorCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Tensor]
    before: Any = None
    in_loss: bool = False

    @property
    def read(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return tensors((self.args, self.kwargs))

    def given(self, name: str, position: int, default: Any = None) -> Any:
        """Return an argument by its name or position."""
        return self.kwargs.get(name, self.args[position] if len(self.args) > position else default)


class Tracer(Observer):
    """Follow the dataflow of a network's passes and of its loss.

    `on_call`, or the function that is given, receives every call that makes a tensor.

    Attributes:
        flow: the calls.
        entered: qualified names of the modules that ran.
        failed: the module that was running when a call raised an error; empty if no call did.
    """

    def __init__(self, receive: Callable[[Seen], object] | None = None) -> None:
        super().__init__()
        self.flow = PassFlow()
        self.failed, self._in_loss = "", False
        self.entered: set[str] = set()
        self._receive = receive
        self._is_paused, self._calls = False, exclusive.calls

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, and add it to the flow."""
        # A loss or a forward pass may call the library, for another network.
        if self._is_paused or exclusive.calls != self._calls:
            return function(*args, **kwargs)
        path = self.stack[-1].path if self.stack else LOSS if self._in_loss else ""
        before = self.before_call(name, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception:
            self.failed = self.failed or path or "forward"
            raise
        made = tensors(args[:1] if name == "__setitem__" else result)
        if made:
            call = self.flow.note(name, path, tensors((args, kwargs)), made)
            with torch.no_grad():
                self.on_call(Seen(call, args, kwargs, made, before, self._in_loss))
        return result

    def before_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `on_call` receives as `before`; called before the call is made."""

    def on_call(self, seen: Seen) -> None:
        """Receive a call; no gradients are recorded."""
        if self._receive is not None:
            self._receive(seen)

    def on_enter(self, run: ModuleRun) -> None:
        """Note that a module runs."""
        self.entered.add(run.path)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the calls of the body."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def of_loss(self) -> Iterator[None]:
        """Attribute the calls of the body to the loss."""
        self._in_loss = True
        try:
            yield
        finally:
            self._in_loss = False

    @contextmanager
    def follow(self, model: nn.Module, inputs: Any, targets: Any = None) -> Iterator[None]:
        """Follow a network while the body runs it on a batch."""
        flow = self.flow
        for name, parameter in model.named_parameters():
            flow.given([parameter], "parameter", name)
        for name, buffer in model.named_buffers():
            flow.given([buffer], "buffer", name)
        flow.given(tensors(targets), "targets")
        flow.given(tensors(inputs), "inputs")
        # Compiled parts would be traced together with this mode.
        with torch.compiler.set_stance("force_eager"), self.following(model):
            yield

    def run(self, model: nn.Module, inputs: Any, targets: Any, loss: Loss) -> Tensor:
        """Follow a pass through a network and its loss, and return the loss."""
        with self.follow(model, inputs, targets):
            output = compute_output(model, inputs)
            with self.of_loss():
                return loss_of(loss, output, inputs, targets)


def tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested values."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def with_rows(values: Any, count: int, rows: list[int]) -> Any:
    """Return nested values with other rows in every tensor with one row for each of `count` examples."""

    def chosen(value: Any) -> Any:
        has_examples = isinstance(value, Tensor) and value.dim() and len(value) == count
        return value[torch.tensor(rows, device=value.device)] if has_examples else value

    return tree_map(chosen, values)


def reals(values: Any) -> list[Tensor]:
    """Return the dense tensors of floats in nested values."""
    return [value for value in tensors(values) if value.is_floating_point() and value.layout == torch.strided]


def with_leaf(values: Any, number: int, tensor: Tensor) -> Any:
    """Return nested values with another tensor in place of the one with this number."""
    leaves, structure = tree_flatten(values)
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)][number]
    return tree_unflatten([*leaves[:where], tensor, *leaves[where + 1 :]], structure)


class BackwardTracer(Tracer):
    """Records which call made each node of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[Any, TensorCall] = {}

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
    def hooked(self, receive: Callable[[TensorCall, Any, Gradients, Gradients], None]) -> Iterator[None]:
        """Call `receive` with each call, its node, and the gradients of its inputs and results in a backward pass."""
        with ExitStack() as stack:
            for node, call in self.nodes.items():
                stack.enter_context(node.register_hook(partial(receive, call, node)))
            yield


def parameters_behind(node: Any) -> set[int]:
    """Return the identities of the parameters that a node of the backward pass leads to."""
    nodes = reachable([node], lambda node: (before for before, _ in node.next_functions if before is not None))
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}
