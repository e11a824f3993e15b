"""The dataflow of a pass and its loss: the call that made each tensor, what it read, and its line of code."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import filterfalse
from math import inf, isfinite, isnan
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from normless._internal.reach import reachable

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
_KINDS = {
    "weight": "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bilinear embedding "
    "embedding_bag lstm gru rnn_tanh rnn_relu multi_head_attention_forward addmm",
    "norm": "layer_norm group_norm instance_norm batch_norm rms_norm",
    "activation": "relu relu_ leaky_relu leaky_relu_ elu selu gelu silu mish softplus tanh tanh_ sigmoid sigmoid_ "
    "hardtanh relu6 hardsigmoid hardswish prelu rrelu celu logsigmoid softsign clamp clamp_min",
    "softmax": "softmax log_softmax",
    "attention": "scaled_dot_product_attention",
    "dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout",
}
KINDS = {name: kind for kind, names in _KINDS.items() for name in names.split()}
# Losses of torch whose arguments have a meaning that their values show.
LOSSES = {
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "nll_loss", "kl_div",
    "ctc_loss", "soft_margin_loss", "hinge_embedding_loss", "cosine_embedding_loss", "margin_ranking_loss",
    "poisson_nll_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss",
}  # fmt: skip
_SAME = {
    "add": "radd iadd", "sub": "isub subtract", "rsub": "", "mul": "rmul imul multiply", "cat": "concat concatenate",
    "div": "truediv itruediv divide true_divide", "rdiv": "rtruediv", "matmul": "rmatmul", "pow": "ipow",
    "clamp": "clip",
}  # fmt: skip
_PLAIN = {other: name for name, others in _SAME.items() for other in others.split()}
# The functions of this package that run a network or a loss; a line outside them belongs to the caller.
ENTRIES = frozenset({"compute_output", "loss_of", "repeat_pass"})
LOSS = "loss"
OF_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


@cache
def plain(name: str) -> str:
    """Return the name of a function without underscores, one for all ways to write an operator."""
    return _PLAIN.get(name.strip("_"), name.strip("_"))


def is_in_place(name: str) -> bool:
    """Whether a function writes into its first argument."""
    return (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE


# Operations in place whose names do not end with one underscore.
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


@dataclass(frozen=True)
class CodeLine:
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
    source: TensorCall | None = None
    length: float = inf

    @property
    def is_bounded(self) -> bool:
        """Whether one of the limits is finite."""
        return not (isnan(self.low) or isnan(self.high)) and (isfinite(self.low) or isfinite(self.high))

    @property
    def is_one_value(self) -> bool:
        """Whether all values are equal."""
        return self.low == self.high

    def __neg__(self) -> Range:
        return replace(self, low=-self.high, high=-self.low)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high, self.source or other.source)

    def __mul__(self, other: Range) -> Range:
        ends = [0.0 if 0 in (x, y) else x * y for x in (self.low, self.high) for y in (other.low, other.high)]
        factor, scaled = (self, other) if self.is_one_value else (other, self)
        length = abs(factor.low) * scaled.length if factor.is_one_value else inf
        return Range(min(ends), max(ends), self.source or other.source, length)

    def inverse(self) -> Range:
        """Return the range of 1/x; unbounded if x may be on both sides of 0."""
        if self.low < 0 < self.high:
            return Range()
        if self.low < 0:
            return -(-self).inverse()
        return Range(1 / self.high if self.high else inf, 1 / self.low if self.low else inf, self.source)

    def mapped(self, function: Callable[[float], float]) -> Range:
        """Return the range under a function that grows."""
        return Range(function(self.low), function(self.high), self.source)


@dataclass(eq=False)
class TensorCall:
    """A call that made tensors, or given data.

    Attributes:
        name: the name of the function; for data, a name such as `the targets` or `0.running_var`.
        path: qualified name of the module that made the call, empty for the network itself; `loss` for the loss.
        kind: `call`, or for data `inputs`, `targets`, `parameter` or `buffer`; `unknown` for tensors of other origin.
        reads: the calls that made the tensors it read, with the shapes of these tensors.
        shape: the shape of the first tensor that it made.
        is_trained: whether the result depends on trainable parameters.
        is_signal: whether the result depends on the inputs, on random numbers, or on tensors of unknown origin.
        is_copied: whether the result depends on values without a known history.
        is_indexed: whether it read integers that are data.
        is_recorded, has_history: whether gradients were recorded, and whether the result has a history.
        range: the interval of its values, if it was computed.
    """

    name: str
    path: str = ""
    kind: str = "call"
    line: CodeLine | None = None
    reads: tuple[tuple[TensorCall, tuple[int, ...]], ...] = ()
    shape: tuple[int, ...] = ()
    is_trained: bool = False
    is_signal: bool = False
    is_copied: bool = False
    is_indexed: bool = False
    is_recorded: bool = True
    has_history: bool = False
    range: Range = field(default_factory=Range)

    @property
    def plain(self) -> str:
        """The name of the function, the same for all ways to write an operator."""
        return plain(self.name)

    @property
    def layer(self) -> str:
        """What the function does in a network: `weight`, `norm`, `activation`, …; empty for others."""
        return KINDS.get(self.name, "")

    @property
    def in_loss(self) -> bool:
        """Whether the loss made the call."""
        return self.path == LOSS

    @property
    def place(self) -> str:
        """The place of the call, for messages."""
        return "the loss" if self.in_loss else self.path or "forward"

    @property
    def where(self) -> tuple[str, ...]:
        """The place of the call, for findings; none in the loss."""
        return () if self.in_loss else (self.place,)

    @property
    def words(self) -> dict[str, Any]:
        """The place and the line of the call, for the texts of findings."""
        at = f", {self.line}" if self.line else ""
        return {"place": self.place, "line": str(self.line or self.place), "at": at}

    def sources(self) -> Iterator[TensorCall]:
        """Return the calls that made the tensors it read."""
        return (call for call, _ in self.reads)

    def origin(self) -> TensorCall:
        """Return the call that made the values, before calls that only moved them."""
        call = self
        while call.name in MOVES and call.reads:
            call = call.reads[0][0]
        return call

    def reached(self, stops: Callable[[TensorCall], bool] = lambda call: False) -> Iterator[TensorCall]:
        """Iterate over this call and all before it, without those that stop the way and what only they read."""
        return reachable([self] if not stops(self) else (), lambda call: filterfalse(stops, call.sources()))


class PassFlow:
    """The calls of a pass in order, and the call that made each tensor."""

    def __init__(self) -> None:
        self.calls: list[TensorCall] = []
        self._made = WeakIdKeyDictionary()

    def given(self, values: Iterable[Tensor], kind: str, name: str = "") -> None:
        """Register data under a name."""
        for tensor in values:
            is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            self._made[tensor] = TensorCall(
                name or f"the {kind}",
                kind=kind,
                shape=tuple(tensor.shape),
                is_trained=is_trained,
                is_signal=kind in ("inputs", "unknown"),
                is_copied=kind == "unknown",
            )

    def of(self, tensor: Tensor) -> TensorCall | None:
        """Return the call that made a tensor, or None if it is unknown."""
        found: TensorCall | None = self._made.get(tensor)  # type: ignore[no-untyped-call]
        return None if found is None or found.kind == "unknown" else found

    def maker(self, tensor: Tensor) -> TensorCall:
        """Return the call that made a tensor, of kind `unknown` if none was seen."""
        if tensor not in self._made:
            self.given([tensor], "unknown")
        call: TensorCall = self._made[tensor]
        return call

    def note(self, name: str, path: str, read: list[Tensor], made: list[Tensor]) -> TensorCall:
        """Add a call."""
        reads = tuple((self.maker(tensor), tuple(tensor.shape)) for tensor in read)
        call = TensorCall(
            name,
            path,
            line=running_line(),
            reads=reads,
            shape=tuple(made[0].shape) if made else (),
            is_trained=any(source.is_trained for source, _ in reads),
            is_signal=name.startswith(DRAWN) or any(source.is_signal for source, _ in reads),
            is_copied=name in VALUES or any(source.is_copied for source, _ in reads),
            is_recorded=torch.is_grad_enabled(),
            has_history=any(tensor.requires_grad for tensor in made),
            is_indexed=any(
                source.kind not in ("call", "unknown") or (source.kind == "call" and source.is_signal)
                for tensor, (source, _) in zip(read, reads, strict=True)
                if tensor.dtype == torch.int64 and tensor.dim()
            ),
        )
        self.calls.append(call)
        for tensor in made:
            self._made[tensor] = call
        return call


def running_line() -> CodeLine | None:
    """Return the running line of the user's code: the innermost line outside torch and this package."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OF_LIBRARIES):
            return CodeLine(file, frame.f_lineno)
        if frame.f_code.co_name in ENTRIES and file.startswith(OF_LIBRARIES[1]):
            return None
        frame = frame.f_back
    return None
