"""Find the first value that is not finite: the call that makes or passes it, its line, and its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normless.doctor.facts.flow import LOSS, Call, Seen, Tracer, tensors
from normless.probes import Loss, preserve_state


@dataclass(frozen=True)
class Values:
    """The tensors that a call read: a description of each, and whether it holds NaN or an infinity."""

    words: tuple[str, ...]
    has_nan: tuple[bool, ...]
    has_infinity: tuple[bool, ...]


@dataclass(frozen=True)
class Broken:
    """The origin of a value that is not finite.

    Attributes:
        what: `loss`, `output` or `gradient`.
        call: the call that makes the value, or the data that hold it.
        value: `NaN`, `infinite` or `not finite`.
        reads: a description of the tensors that the call read.
        infinity: the call that made the infinities among them, if any.
    """

    what: str
    call: Call
    value: str
    reads: str = ""
    infinity: Call | None = None

    @property
    def place(self) -> str:
        """The place of the call, for messages."""
        return f"the {LOSS}" if self.call.path == LOSS else self.call.place

    @property
    def line(self) -> str:
        """The line of the user's code that makes the call, or the place of the call."""
        return str(self.call.line or self.place)

    @property
    def does(self) -> str:
        """What the call does with such a value, as a verb phrase."""
        return "pass on such a gradient" if self.what == "gradient" else "return such a value"

    @property
    def all_reads(self) -> str:
        """A description of the tensors that the call read, with the origin of infinities."""
        reads, source = self.reads or "nothing", self.infinity
        if source is None or source is self.call:
            return reads
        return f"{reads}, infinite since {source.name} at {source.line or source.place}"


class Search(Tracer):
    """Records for every call what it read and which of its results are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[Call, Values] = {}
        self.made: dict[Call, Values] = {}
        self.nodes: dict[Call, list[Any]] = {}

    def before_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Describe what an in-place call reads before it is overwritten."""
        in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))
        return _values(tensors((args, kwargs))) if in_place else None

    def on_call(self, seen: Seen) -> None:
        """Record the values and the nodes of the backward pass."""
        self.read[seen.call] = seen.before or _values(seen.read, _written(seen))
        self.made[seen.call] = _values(seen.made)
        self.nodes[seen.call] = [tensor.grad_fn for tensor in seen.made if tensor.grad_fn is not None]

    def origin(self, tensor: Tensor, what: str) -> Broken | None:
        """Return the origin of the values in a tensor that are not finite, or None if all are finite."""
        call, values = self.flow.of(tensor), _values([tensor])
        if call is None or not (values.has_nan[0] or values.has_infinity[0]):
            return None
        is_nan = values.has_nan[0]
        while call in self.read and (before := self._source(call, is_nan=is_nan)) is not None:
            call = before
        infinity = None
        if is_nan and call in self.read:
            infinity = self._source(call, is_nan=False)
            while infinity in self.read and (before := self._source(infinity, is_nan=False)) is not None:
                infinity = before
            if infinity is not None and infinity.kind == "parameter":
                return Broken(what, infinity, "infinite")
        read = self.read[call].words if call in self.read else ()
        return Broken(what, call, "NaN" if is_nan else "infinite", _joined(read), infinity)

    def _source(self, call: Call, *, is_nan: bool) -> Call | None:
        """Return the call that made the first input with such values, or None if it is unknown."""
        values = self.read[call]
        flags = values.has_nan if is_nan else values.has_infinity
        return next(
            (source for (source, _), flag in zip(call.reads, flags, strict=True) if flag and source is not None), None
        )

    def backward(self, value: Tensor, parameters: Sequence[Tensor] = ()) -> Broken | None:
        """Run the backward pass, and return the first call that passes on a gradient that is not finite.

        If `parameters` are given, their gradients are computed but not accumulated, so that hooks on them do not run.
        """
        found: list[Call] = []
        seen: set[Any] = set()

        def passed(
            call: Call, gradients_in: tuple[Tensor | None, ...], gradients_out: tuple[Tensor | None, ...]
        ) -> None:
            if not found and _is_finite(gradients_out) and not _is_finite(gradients_in):
                found.append(call)

        handles = [
            node.register_hook(partial(passed, call))
            for call, nodes in self.nodes.items()
            for node in _new_nodes(nodes, seen)
        ]
        if parameters:
            torch.autograd.grad(value, parameters, allow_unused=True)
        else:
            value.backward()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
        if not found:
            return None
        return Broken("gradient", found[0], "not finite", _joined(self.read[found[0]].words))


def find_broken(model: nn.Module, inputs: Any, targets: Any, loss: Loss, *, training: bool) -> Broken | None:
    """Repeat a pass, in training mode with its backward pass, and find the first value that is not finite."""
    search = Search()
    with preserve_state(model, training=training), torch.enable_grad():
        value = search.run(model, inputs, targets, loss)
        broken = search.origin(value, "loss")
        if broken is None and training and value.requires_grad:
            broken = search.backward(value)
    return broken


def _new_nodes(nodes: list[Any], seen: set[Any]) -> Iterator[Any]:
    """Return the nodes of a backward pass from these on that were not seen before, without those of parameters."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node is None or node in seen or not node.next_functions:
            continue
        seen.add(node)
        yield node
        stack += [before for before, _ in node.next_functions]


def _is_finite(gradients: tuple[Tensor | None, ...]) -> bool:
    return all(gradient is None or gradient.is_sparse or bool(gradient.isfinite().all()) for gradient in gradients)


def _joined(values: tuple[str, ...]) -> str:
    words = [text for text in values if text]
    return " and ".join(words[:2]) + (f" and {len(words) - 2} more" if len(words) > 2 else "")


def _written(seen: Seen) -> list[Any]:
    """Return the running statistics that a norm in training updates and does not read."""
    if (name := seen.call.name) not in ("batch_norm", "instance_norm"):
        return []
    names = ("input", "running_mean", "running_var", "weight", "bias", "training")
    given = dict(zip(names, seen.args, strict=False)) | seen.kwargs
    by_batch = given.get("training", given.get("use_input_stats", name == "instance_norm"))
    return [given.get("running_mean"), given.get("running_var")] if by_batch else []


def _values(read: list[Tensor], written: Sequence[Any] = ()) -> Values:
    known = [_of(tensor.detach()) for tensor in read]
    known = [
        (words if is_read else "", nan and is_read, infinite and is_read)
        for (words, nan, infinite), tensor in zip(known, read, strict=True)
        for is_read in [all(tensor is not statistic for statistic in written)]
    ]
    words, nan, infinity = zip(*known, strict=True) if known else ((), (), ())
    return Values(words, nan, infinity)


def _of(x: Tensor) -> tuple[str, bool, bool]:
    """Describe a tensor: its type, shape and range, and the numbers of values that are 0 or not finite."""
    name = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    if x.numel() == 0:
        return f"{name} without values", False, False
    if x.is_complex() or x.layout != torch.strided or x.is_quantized or x.is_meta:
        return name, False, False
    if not x.is_floating_point():
        return f"{name} from {x.min():g} to {x.max():g}" if x.dtype != torch.bool else name, False, False
    nan, infinite = int(x.isnan().sum()), int(x.isinf().sum())
    finite = x[x.isfinite()] if nan or infinite else x
    text = f"{name} from {float(finite.min()):.3g} to {float(finite.max()):.3g}" if finite.numel() else name
    counts = {"0": int((x == 0).sum()), "NaN": nan, "infinite": infinite}
    counted = [f"{count} of them {kind}" for kind, count in counts.items() if count]
    return ", ".join([text, *counted]), nan > 0, infinite > 0
