"""Record a pass through a network: the inputs and outputs of its layers, activations and attentions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from math import nan, prod, sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from normless.doctor.facts._flow import LOSSES, TensorCall
from normless.doctor.facts._ranges import range_of
from normless.doctor.facts._tracer import Seen, Tracer, tensors, with_rows
from normless.nn._channels import in_pieces
from normless.probes import Watcher

# Larger attentions are measured on one example.
_MOST_WEIGHTS = 2**25
# A row of attention weights counts as certain if its largest weight is above this.
CERTAIN = 0.99
# The values at which the slopes of tanh and σ are below 4 and 8 % of their largest.
_FLAT: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: y.abs() > 0.98,
    "sigmoid": lambda y: (y - 0.5).abs() > 0.48,
}


class ExampleMoments(NamedTuple):
    """E[x²] of a tensor, the share of its variance that is between examples (axis 0), and the root of this part.

    The last two are NaN if axis 0 does not hold the examples.
    """

    second: float = nan
    spread: float = nan
    deviation: float = nan


NONE = ExampleMoments()


def norm_of(tensor: Tensor) -> float:
    """Return the norm of a tensor in float64, without a copy in this type."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return float(torch.linalg.vector_norm(real, dtype=torch.float64))


@dataclass
class LayerEvent:
    """A call of a layer, an activation, an attention or a dropout.

    Attributes:
        call: the call.
        parameters: the parameters that it read.
        detached: whether its input does not need a gradient although it is not data.
        output: the output tensor.
        read, made: the moments of its input, if it is no parameter, and of its output.
        correlation: the mean cosine of two examples in the input of a weight layer.
        off, saturated: the shares of units that are never positive, and of values where the activation is flat.
        peaked: the share of an attention's rows with more than 99 % of the weight on one of several positions.
        normalized: the number of values from which each statistic of a norm is computed; None for stored statistics.
        rate: the rate of dropout.
        gradient: the root mean square of the loss's gradient with respect to the output; None if it has none.
    """

    call: TensorCall
    parameters: tuple[Tensor, ...]
    detached: bool
    output: Tensor = field(repr=False)
    read: ExampleMoments = NONE
    made: ExampleMoments = NONE
    correlation: float = nan
    off: float = nan
    saturated: float = nan
    peaked: float = nan
    normalized: int | None = None
    rate: float = 0.0
    gradient: float | None = None

    @property
    def place(self) -> str:
        """The place of the call, for messages."""
        return self.call.place

    @property
    def matrices(self) -> list[Tensor]:
        """The parameters of two axes or more."""
        return [parameter for parameter in self.parameters if parameter.dim() > 1]


@dataclass(frozen=True)
class LossCall:
    """A call of a loss of torch, with its arguments by name; a product with a mask has the argument `mask`."""

    call: TensorCall
    values: dict[str, Any]


class EventTape(Tracer):
    """Records the events of a pass, and the calls of losses with their arguments."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples = examples
        self._measured = WeakIdKeyDictionary()
        self.losses: list[LossCall] = []
        self.events: list[LayerEvent] = []
        # Of the last sum or mean that the loss takes, what float32 may make of summands that cancel.
        self.rounding = 0.0

    @staticmethod
    def leave_out(watcher: Watcher) -> Watcher:
        """Leave out the calls of a watcher, which are not those of the network."""

        def left_out(method: Callable[..., None], *args: Any) -> None:
            with torch._C.DisableTorchFunction():
                method(*args)

        for name in filter(lambda name: name.startswith("on_"), dir(Watcher)):
            setattr(watcher, name, partial(left_out, getattr(watcher, name)))
        return watcher

    def on_call(self, seen: Seen) -> None:
        """Record a layer, an activation or an attention; of the loss, its calls of torch's losses."""
        call = seen.call
        if call.name in LOSSES:
            bound = signature(getattr(F, call.name)).bind(*seen.args, **seen.kwargs)
            bound.apply_defaults()
            self.losses.append(LossCall(call, bound.arguments))
        if not seen.in_loss:
            # Tensors of unusual types lack functions; their ranges are unknown.
            with suppress(Exception):
                call.range = range_of(seen)
            if call.layer:
                self._record(seen)
        elif call.plain == "mul" and (mask := _mask(seen.args)) is not None:
            self.losses.append(LossCall(call, {"mask": mask}))
        elif call.name in ("mean", "sum") and seen.made[0].numel() == 1 and seen.read:
            x = seen.read[0].detach().double().abs()
            self.rounding = torch.finfo(torch.float32).eps * float(x.mean() if call.name == "mean" else x.sum())

    def _record(self, seen: Seen) -> None:
        call, read = seen.call, seen.read
        y = next((tensor for tensor in seen.made if tensor.is_floating_point()), None)
        # Values computed from weights alone, such as standardized weights, are not part of the signal.
        is_signal = call.is_signal or call.layer not in ("norm", "activation", "softmax")
        if y is None or not y.numel() or not read or not is_signal:
            return
        x, source = read[0], call.reads[0][0]
        owners = (tensor._base if tensor._is_view() else tensor for tensor in read)
        parameters = tuple(owner for owner in owners if isinstance(owner, nn.Parameter))
        is_values = x.is_floating_point() and not isinstance(x, nn.Parameter)
        detached = is_values and (source.is_trained or source.is_copied) and not x.requires_grad
        event = LayerEvent(call, parameters, detached, y)
        event.made = self._moments_of(y)
        if is_values:
            event.read = self._moments_of(x)
            if event.call.layer == "weight" and x.dim() > 1 and len(x) == self.examples > 1:
                event.correlation = _mean_cosine(x.detach().flatten(1).double())
        _describe(event, seen)
        self.events.append(event)
        if y.requires_grad:
            # The graph holds its hooks, and the event holds the graph: a strong reference would keep both for ever.
            y.register_hook(partial(_note, weakref.ref(event)))  # type: ignore[no-untyped-call]

    def _moments_of(self, x: Tensor) -> ExampleMoments:
        """Return the moments of a tensor; those of the input of a call were measured as the output of another."""
        known: tuple[int, ExampleMoments] | None = self._measured.get(x)  # type: ignore[no-untyped-call]
        # Calls in place change the values and this number; tensors of inference mode have none and do not change.
        version = 0 if x.is_inference() else x._version
        if known is None or known[0] != version:
            known = self._measured[x] = version, moments(x.detach(), self.examples)
        return known[1]


def moments(x: Tensor, examples: int) -> ExampleMoments:
    """Return the moments of values (examples, …), computed in float64 in one pass over pieces of them."""
    has_examples = x.dim() > 1 and len(x) == examples > 1
    first = x[:1].reshape(1, -1).double() if has_examples else torch.zeros((), dtype=torch.float64, device=x.device)
    squares, sums, apart = torch.zeros_like(first).sum(), torch.zeros_like(first), torch.zeros_like(first).sum()
    for piece in in_pieces(x) if x.dim() else (x,):
        values = piece.reshape(len(piece) if has_examples else 1, -1).to(torch.float64, copy=True).contiguous()
        squares += torch.dot(values.view(-1), values.view(-1))
        if has_examples:
            # Without the first example, equal examples are exactly 0, and large means do not cancel.
            values -= first
            sums += values.sum(0, keepdim=True)
            apart += torch.dot(values.view(-1), values.view(-1))
    size = max(x.numel(), 1)
    if not has_examples:
        return ExampleMoments(float(squares) / size)
    between = max((float(apart) - float(sums.square().sum()) / examples) / size, 0.0)
    # The variance is the mean of the variances over examples plus the variance of the means.
    whole = between + float((first + sums / examples).var(correction=0))
    return ExampleMoments(float(squares) / size, between / whole if whole > 0 else 0.0, between**0.5)


def _mean_cosine(x: Tensor) -> float:
    """Return the mean cosine of two rows."""
    total = float(F.normalize(x).sum(0).square().sum())
    return (total / len(x) - 1) / (len(x) - 1)


def _mask(factors: tuple[Any, ...]) -> Tensor | None:
    """Return the factor that holds only zeros and ones, some of each."""
    for factor in tensors(factors):
        if factor.dim() and not factor.requires_grad and not factor.is_complex():
            is_one = factor == 1
            if bool(((factor == 0) | is_one).all()) and 0 < int(is_one.sum()) < factor.numel():
                return factor
    return None


def _note(of: weakref.ref[LayerEvent], gradient: Tensor) -> None:
    if (event := of()) is not None:
        event.gradient = norm_of(gradient.detach()) / sqrt(max(gradient.numel(), 1))


def _describe(event: LayerEvent, seen: Seen) -> None:
    """Fill in the attributes that only some kinds have."""
    y = event.output.detach()
    if event.call.layer == "activation" and y.dim() > 1:
        units = y.movedim(1, -1) if y.dim() == 4 else y
        event.off = float((units.flatten(0, -2) <= 0).all(0).double().mean())
        flat = _FLAT.get(event.call.plain)
        event.saturated = float(flat(y).double().mean()) if flat else nan
    elif event.call.name == "lstm":
        event.saturated = _saturated_gates(seen.args, y)
    elif event.call.name == "softmax" and y.dim() > 2:
        event.peaked = _peaked(y)
    elif event.call.layer == "attention" or event.call.name == "multi_head_attention_forward":
        event.peaked = _peaked(attention_weights(seen))
    elif event.call.layer == "norm":
        event.normalized = _normalized(event, seen)
    elif event.call.layer == "dropout":
        event.rate = active_rate(seen)


def active_rate(seen: Seen) -> float:
    """Return the rate of a call of dropout or of torch's attention; 0 if it is not active or another call."""
    if seen.call.name == "scaled_dot_product_attention":
        return float(seen.given("dropout_p", 4, 0.0))
    is_active = seen.call.layer == "dropout" and seen.kwargs.get("train", seen.given("training", 2, True))
    return float(seen.given("p", 1, 0.5)) if is_active else 0.0


def _peaked(weights: Tensor) -> float:
    """Return the share of rows (…, positions) with nearly all weight on one position; NaN for a single position."""
    return float((weights.amax(-1) > CERTAIN).double().mean()) if weights.shape[-1] > 1 else nan


def attention_weights(seen: Seen) -> Tensor:
    """Return the weights (…, queries, keys) of a call of torch's attention: its output for unit vectors as values.

    Of large ones only those of the first example are returned.
    """
    if seen.call.name == "multi_head_attention_forward":
        options = seen.kwargs | {"need_weights": True, "average_attn_weights": False, "training": False}
        weights: Tensor = F.multi_head_attention_forward(*seen.args, **options)[1]  # type: ignore[assignment]
        return weights
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, seen.args, strict=False)) | seen.kwargs | {"dropout_p": 0.0}
    if given["query"].shape[:-1].numel() * given["key"].shape[-2] > _MOST_WEIGHTS:
        given = with_rows(given, len(given["query"]), [0])
    key = given["key"]
    given["value"] = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device).expand(*key.shape[:-1], -1)
    return F.scaled_dot_product_attention(**given)


def _saturated_gates(args: tuple[Any, ...], y: Tensor) -> float:
    """Return the share of saturated gates of an LSTM's first layer for zero states; NaN for packed sequences."""
    if not isinstance(args[1], (tuple, list)) or y.dim() != 3:
        return nan
    x, (hidden, _), weights, has_biases = args[:4]
    gates = F.linear(x, weights[0], weights[2] + weights[3] if has_biases else None)
    own, cell = gates[..., : 2 * hidden.shape[-1]], gates[..., 3 * hidden.shape[-1] :]
    return float(_FLAT["sigmoid"](torch.cat([own, cell], -1).sigmoid()).double().mean())


def _normalized(event: LayerEvent, seen: Seen) -> int | None:
    """Return the number of values from which each statistic of a norm is computed; None for stored statistics."""
    examples, channels, *positions = (*event.call.reads[0][1], 1)
    if event.call.name in ("layer_norm", "rms_norm"):
        return int(prod(seen.given("normalized_shape", 1, ())))
    if event.call.name == "group_norm":
        return int(channels) // int(seen.given("num_groups", 1, 1)) * prod(positions)
    if event.call.name == "instance_norm":
        return prod(positions)
    return examples * prod(positions) if seen.given("training", 5, False) else None
