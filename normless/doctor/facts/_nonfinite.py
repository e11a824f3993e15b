"""Find the first value that is not finite: the call that makes or passes it, its line, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normless.doctor.facts._flow import TensorCall, is_in_place
from normless.doctor.facts._tracer import BackwardTracer, Gradients, Seen, tensors
from normless.probes import Loss
from normless.state import preserve_state


class NonfiniteValue(NamedTuple):
    """A tensor that a call read: a description, and whether it holds NaN or an infinity."""

    words: str = ""
    has_nan: bool = False
    has_infinity: bool = False


@dataclass(frozen=True)
class Broken:
    """The origin of a value that is not finite.

    Attributes:
        what: `loss`, `output` or `gradient`.
        call: the call that makes the value, or the data that hold it.
        value: `NaN`, `infinite` or `not finite`.
        all_reads: a description of the tensors that the call read.
    """

    what: str
    call: TensorCall
    value: str
    all_reads: str = "nothing"

    @property
    def place(self) -> str:
        """The place of the call, for messages."""
        return self.call.place

    @property
    def line(self) -> str:
        """The line of the user's code that makes the call, or the place of the call."""
        return str(self.call.words["line"])

    @property
    def does(self) -> str:
        """What the call does with such a value, as a verb phrase."""
        return "pass on such a gradient" if self.what == "gradient" else "return such a value"


class Search(BackwardTracer):
    """Records for every call what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[TensorCall, list[NonfiniteValue]] = {}

    def before_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Describe what an in-place call reads before it is overwritten."""
        return [*map(_value, tensors((args, kwargs)))] if is_in_place(name) else None

    def on_call(self, seen: Seen) -> None:
        """Record the values and the nodes of the backward pass."""
        super().on_call(seen)
        written = _written(seen)
        is_written = (any(tensor is other for other in written) for tensor in seen.read)
        values = (NonfiniteValue() if skips else _value(x) for x, skips in zip(seen.read, is_written, strict=True))
        self.read[seen.call] = seen.before or [*values]

    def origin(self, tensor: Tensor, what: str) -> Broken | None:
        """Return the origin of the values in a tensor that are not finite, or None if all are finite."""
        call, value = self.flow.of(tensor), _value(tensor)
        if call is None or not (value.has_nan or value.has_infinity):
            return None
        call = self._first(call, value.has_nan)
        infinite = self._first(call, is_nan=False)
        if infinite.kind == "parameter":
            return Broken(what, infinite, "infinite")
        return Broken(what, call, "NaN" if value.has_nan else "infinite", self._words(call))

    def _first(self, call: TensorCall, is_nan: bool) -> TensorCall:
        """Return the first call, on the way back from another, whose result holds such values."""
        while (before := self._source(call, is_nan)) is not None:
            call = before
        return call

    def _source(self, call: TensorCall, is_nan: bool) -> TensorCall | None:
        """Return the call that made the first input with such values, or None if there is none or it is unknown."""
        flags = (value.has_nan if is_nan else value.has_infinity for value in self.read.get(call, ()))
        found = (source for source, flag in zip(call.sources(), flags, strict=False) if flag)
        return next((source for source in found if source.kind != "unknown"), None)

    def _words(self, call: TensorCall) -> str:
        words = [value.words for value in self.read.get(call, ()) if value.words]
        more = [f"{len(words) - 2} more"] if len(words) > 2 else []
        return " and ".join([*words[:2], *more]) or "nothing"

    def backward(self, value: Tensor, parameters: Sequence[Tensor] = ()) -> Broken | None:
        """Run the backward pass, and return the first call that passes on a gradient that is not finite.

        If `parameters` are given, their gradients are computed but not accumulated, so that hooks on them do not run.
        """
        found: list[TensorCall] = []

        def passed(call: TensorCall, _: Any, gradients_in: Gradients, gradients_out: Gradients) -> None:
            if not found and _is_finite(gradients_out) and not _is_finite(gradients_in):
                found.append(call)

        with self.hooked(passed):
            if parameters:
                torch.autograd.grad(value, parameters, allow_unused=True)
            else:
                value.backward()  # type: ignore[no-untyped-call]
        return Broken("gradient", found[0], "not finite", self._words(found[0])) if found else None


def find_broken(model: nn.Module, inputs: Any, targets: Any, loss: Loss, *, training: bool) -> Broken | None:
    """Repeat a pass, in training mode with its backward pass, and find the first value that is not finite."""
    search = Search()
    with preserve_state(model, training=training), torch.enable_grad():
        value = search.run(model, inputs, targets, loss)
        broken = search.origin(value, "loss")
        return search.backward(value) if broken is None and training and value.requires_grad else broken


def _is_finite(gradients: Gradients) -> bool:
    return all(gradient is None or gradient.is_sparse or bool(gradient.isfinite().all()) for gradient in gradients)


def _written(seen: Seen) -> list[Any]:
    """Return the running statistics that a norm in training updates and does not read."""
    if (name := seen.call.name) not in ("batch_norm", "instance_norm"):
        return []
    names = ("input", "running_mean", "running_var", "weight", "bias", "training")
    given = dict(zip(names, seen.args, strict=False)) | seen.kwargs
    by_batch = given.get("training", given.get("use_input_stats", name == "instance_norm"))
    return [given.get("running_mean"), given.get("running_var")] if by_batch else []


def _value(x: Tensor) -> NonfiniteValue:
    """Describe a tensor: its type, shape and range, and the numbers of values that are 0 or not finite."""
    x = x.detach()
    name = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    if x.numel() == 0:
        return NonfiniteValue(f"{name} without values")
    if x.is_complex() or x.layout != torch.strided or x.is_quantized or x.is_meta or x.dtype == torch.bool:
        return NonfiniteValue(name)
    if not x.is_floating_point():
        return NonfiniteValue(f"{name} from {x.min():g} to {x.max():g}")
    nan, infinite = int(x.isnan().sum()), int(x.isinf().sum())
    finite = x[x.isfinite()] if nan or infinite else x
    text = f"{name} from {float(finite.min()):.3g} to {float(finite.max()):.3g}" if finite.numel() else name
    counts = {"0": int((x == 0).sum()), "NaN": nan, "infinite": infinite}
    counted = [f"{count} of them {kind}" for kind, count in counts.items() if count]
    return NonfiniteValue(", ".join([text, *counted]), nan > 0, infinite > 0)
