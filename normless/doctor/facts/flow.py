"""The dataflow of a pass and its loss: the call that made each tensor, its inputs, and its line of code."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import filterfalse
from math import inf, isfinite, isnan
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from normless._internal.exclusive import exclusive
from normless._internal.reach import reachable
from normless.probes import Loss, compute_output, loss_of
from normless.recording import Observer, Run

# Calls that keep values and change only their shape, type or device, or select some of them.
MOVES = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "movedim",
    "swapaxes", "contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type", "cpu", "cuda",
    "expand", "expand_as", "view_as", "reshape_as", "narrow", "select", "chunk", "split", "unbind",
    "tensor_split", "__getitem__", "index_select", "gather", "detach", "identity", "dropout", "ravel",
    "type_as", "swapdims", "cat", "stack",
}  # fmt: skip
# Products of matrices.
PRODUCTS = {
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "linear", "spmm", "smm",
    "_sparse_mm", "sparse_mm",
}  # fmt: skip
# Calls that draw random numbers.
DRAWN = ("rand", "normal", "bernoulli")
# Calls that make tensors from values without a history.
VALUES = frozenset({"tensor", "as_tensor", "from_numpy", "asarray"})
# The functions of this package that run a network or a loss; a line outside them belongs to the caller.
ENTRIES = frozenset({"compute_output", "loss_of", "repeat_pass"})
LOSS = "loss"
OF_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


@dataclass(frozen=True)
class Line:
    """A line of the user's code."""

    file: str
    number: int

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        place = f"line {self.number} of {Path(self.file).name}"
        return f"{place}, `{self.code}`" if self.code else place


@dataclass(frozen=True)
class Range:
    """An interval that contains all values of a result, whatever the inputs and the trained parameters are.

    Attributes:
        low, high: the interval.
        source: the call that bounds the values; None for constants.
        length: the largest norm of the vectors along one axis of the result; infinite if unknown.
    """

    low: float = -inf
    high: float = inf
    source: Call | None = None
    length: float = inf

    @property
    def is_bounded(self) -> bool:
        """Whether one of the limits is finite."""
        return not (isnan(self.low) or isnan(self.high)) and (isfinite(self.low) or isfinite(self.high))

    def mapped(self, function: Callable[[float], float]) -> Range:
        """Return the range under a monotonic function."""
        ends = sorted((function(self.low), function(self.high)))
        return replace(self, low=ends[0], high=ends[1], length=inf)


@dataclass(eq=False)
class Call:
    """A call that made tensors, or given data.

    Attributes:
        name: the name of the function; for data, a name such as `the targets` or `0.running_var`.
        path: qualified name of the module that made the call, empty for the network itself; `loss` for the loss.
        kind: `call`, or for data `inputs`, `targets`, `parameter` or `buffer`.
        reads: the calls that made the tensors it read (None if unknown), with the shapes of these tensors.
        shape: the shape of the first tensor that it made.
        is_trained: whether the result depends on trainable parameters.
        is_signal: whether the result depends on the inputs, on random numbers, or on tensors of unknown origin.
        is_copied: whether the result depends on values without a known history.
        is_indexed: whether it read integers that are data.
        range: the interval of its values, if it was computed.
    """

    name: str
    path: str = ""
    kind: str = "call"
    line: Line | None = None
    reads: tuple[tuple[Call | None, tuple[int, ...]], ...] = ()
    shape: tuple[int, ...] = ()
    is_trained: bool = False
    is_signal: bool = False
    is_copied: bool = False
    is_indexed: bool = False
    range: Range | None = None

    @property
    def place(self) -> str:
        """The place of the call, for messages."""
        return self.path or "forward"

    def sources(self) -> Iterator[Call]:
        """Return the calls that made the tensors it read, as far as they are known."""
        return (call for call, _ in self.reads if call is not None)

    def origin(self) -> Call:
        """Return the call that made the values, before calls that only moved them."""
        call = self
        while call.name in MOVES and (before := next(call.sources(), None)) is not None:
            call = before
        return call

    def reached(self, stops: Callable[[Call], bool]) -> Iterator[Call]:
        """Iterate over this call and all before it, without those that stop the way and what only they read."""
        return reachable([self] if not stops(self) else (), lambda call: filterfalse(stops, call.sources()))


class Flow:
    """The calls of a pass in order, and the call that made each tensor."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._made = WeakIdKeyDictionary()

    def given(self, values: Iterable[Tensor], kind: str, name: str = "") -> None:
        """Register data under a name."""
        for tensor in values:
            is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            name = name or f"the {kind}"
            self._made[tensor] = Call(
                name, kind=kind, shape=tuple(tensor.shape), is_trained=is_trained, is_signal=kind == "inputs"
            )

    def of(self, tensor: Tensor) -> Call | None:
        """Return the call that made a tensor, or None if it is unknown."""
        found: Call | None = self._made.get(tensor)  # type: ignore[no-untyped-call]
        return found

    def note(self, name: str, path: str, read: list[Tensor], made: list[Tensor]) -> Call:
        """Add a call."""
        reads = tuple((self.of(tensor), tuple(tensor.shape)) for tensor in read)
        is_trained = any(call is not None and call.is_trained for call, _ in reads)
        is_signal = name.startswith(DRAWN) or any(call is None or call.is_signal for call, _ in reads)
        is_copied = name in VALUES or any(call is None or call.is_copied for call, _ in reads)
        shape = tuple(made[0].shape) if made else ()
        call = Call(name, path, "call", running_line(), reads, shape, is_trained, is_signal, is_copied)
        integers = (
            source
            for tensor, (source, _) in zip(read, reads, strict=True)
            if tensor.dtype == torch.int64 and tensor.dim()
        )
        call.is_indexed = any(
            (source is not None and source.kind != "call") or (source is not None and source.is_signal)
            for source in integers
        )
        self.calls.append(call)
        for tensor in made:
            self._made[tensor] = call
        return call


@dataclass(frozen=True)
class Seen:
    """A call with its arguments, the tensors that it made, what `before_call` returned, and whether the loss runs."""

    call: Call
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
        self.flow = Flow()
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
        return torch.is_grad_enabled()

    def on_call(self, seen: Seen) -> None:
        """Receive a call; no gradients are recorded."""
        if self._receive is not None:
            self._receive(seen)

    def on_enter(self, run: Run) -> None:
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


def running_line() -> Line | None:
    """Return the running line of the user's code: the innermost line outside torch and this package."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OF_LIBRARIES):
            return Line(file, frame.f_lineno)
        if frame.f_code.co_name in ENTRIES and file.startswith(OF_LIBRARIES[1]):
            return None
        frame = frame.f_back
    return None
