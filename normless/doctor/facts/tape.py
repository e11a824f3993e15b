"""Record a pass through a network: the inputs and outputs of its layers, activations and attentions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from math import nan, prod, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from normless.doctor.facts.flow import Call, Seen, Tracer, with_rows
from normless.doctor.facts.flow import tensors as tensors
from normless.doctor.facts.ranges import range_of
from normless.nn.channels import in_pieces
from normless.probes import Watcher

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
_OF_SIGNAL = ("norm", "activation", "softmax")
# Losses of torch whose arguments have a meaning that their values show.
LOSSES = {
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "nll_loss", "kl_div", "ctc_loss",
    "soft_margin_loss", "hinge_embedding_loss", "cosine_embedding_loss", "margin_ranking_loss", "poisson_nll_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
}  # fmt: skip
_MULTIPLIES = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply"}
# Larger attentions are measured on one example.
_MOST_WEIGHTS = 2**25
# A row of attention weights counts as certain if its largest weight is above this.
CERTAIN = 0.99
# The values at which the slopes of tanh and σ are below 4 and 8 % of their largest.
_FLAT: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: y.abs() > 0.98,
    "sigmoid": lambda y: (y - 0.5).abs() > 0.48,
}


@dataclass
class Event:
    """A function that a network called.

    Attributes:
        kind: `weight`, `norm`, `activation`, `softmax`, `attention` or `dropout`.
        name: the name of the function.
        path: qualified name of the module that called it, empty for the network itself.
        parameters: the parameters that it read.
        recording: whether gradients were recorded.
        detached: whether its input does not need a gradient although it is not data.
        shape: the shape of its input.
        second_moment: E[y²] of its output.
        spread_in, spread: the share of the variance of its input and output that is between examples (axis 0); NaN if
            axis 0 does not hold the examples.
        deviation: the standard deviation of its output over examples; NaN likewise.
        correlation: the mean cosine of two examples in the input of a weight layer.
        off, saturated: the shares of units that are never positive, and of values where the activation is flat.
        peaked: the share of an attention's rows with more than 99 % of the weight on one of several positions.
        normalized: the number of values from which each statistic of a norm is computed.
        rate: the rate of dropout.
        output: the output tensor.
        gradient: the root mean square of the loss's gradient with respect to the output; None if it has none.
    """

    kind: str
    name: str
    path: str
    parameters: tuple[Tensor, ...]
    recording: bool
    detached: bool
    shape: tuple[int, ...]
    output: Tensor = field(repr=False)
    second_moment: float = nan
    spread_in: float = nan
    spread: float = nan
    deviation: float = nan
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
        return self.path or "forward"


@dataclass(frozen=True)
class LossCall:
    """A call of a loss of torch, with its arguments by name; a product with a mask has the argument `mask`."""

    call: Call
    values: dict[str, Any]


class Tape(Tracer):
    """Records the events of a pass, the calls of losses with their arguments, and counts its concatenations."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples = examples
        self._measured = WeakIdKeyDictionary()
        self.losses: list[LossCall] = []
        self.events: list[Event] = []
        self.joins = 0
        # Of the last sum or mean that the loss takes, what float32 may make of summands that cancel.
        self.rounding = 0.0

    def leave_out(self, *watchers: Watcher) -> None:
        """Leave out the calls of watchers, which are not those of the network."""
        # The graph holds the hooks of watchers, and the tape holds the graph.
        known = weakref.ref(self)

        def left_out(method: Callable[..., None], *args: Any) -> None:
            tape = known()
            with nullcontext() if tape is None else tape.paused():
                method(*args)

        for watcher in watchers:
            for name in dir(Watcher):
                if name.startswith("on_"):
                    setattr(watcher, name, partial(left_out, getattr(watcher, name)))

    def on_call(self, seen: Seen) -> None:
        """Record a layer, an activation or an attention."""
        call = seen.call
        if not seen.in_loss:
            # Tensors of unusual types lack functions; their ranges are unknown.
            with suppress(Exception):
                call.range = range_of(seen)
        if call.name in LOSSES:
            bound = signature(getattr(F, call.name)).bind(*seen.args, **seen.kwargs)
            bound.apply_defaults()
            self.losses.append(LossCall(call, bound.arguments))
        elif seen.in_loss and call.name in _MULTIPLIES and (mask := _mask(seen.args)) is not None:
            self.losses.append(LossCall(call, {"mask": mask}))
        if seen.in_loss and call.name in ("mean", "sum") and seen.made[0].numel() == 1 and seen.read:
            x = seen.read[0].detach().double().abs()
            self.rounding = torch.finfo(torch.float32).eps * float(x.mean() if call.name == "mean" else x.sum())
        self.joins += call.name in ("cat", "concat", "concatenate") and not seen.in_loss
        if call.name in KINDS and not seen.in_loss:
            self._record(seen)

    def _record(self, seen: Seen) -> None:
        call, read = seen.call, seen.read
        y = next((tensor for tensor in seen.made if tensor.is_floating_point()), None)
        kind = KINDS[call.name]
        # Values computed from weights alone, such as standardized weights, are not part of the signal.
        if y is None or not y.numel() or not read or (kind in _OF_SIGNAL and not call.is_signal):
            return
        parameters = tuple(
            owner
            for tensor in read
            if isinstance(owner := tensor._base if tensor._is_view() else tensor, nn.Parameter)
        )
        x, before = read[0], call.reads[0][0]
        is_values = x.is_floating_point() and not isinstance(x, nn.Parameter)
        has_lost = before is None or before.is_trained or before.is_copied
        detached = is_values and has_lost and not x.requires_grad
        event = Event(kind, call.name, call.path, parameters, seen.before, detached, tuple(x.shape), y)
        measured = self._moments_of(y)
        event.second_moment, event.spread, event.deviation = measured.second, measured.spread, measured.deviation
        if is_values:
            event.spread_in = self._moments_of(x).spread
            if event.kind == "weight" and x.dim() > 1 and len(x) == self.examples > 1:
                event.correlation = _mean_cosine(x.detach().flatten(1).double())
        _describe(event, seen)
        self.events.append(event)
        if y.requires_grad:
            # The graph holds its hooks, and the event holds the graph: a strong reference would keep both for ever.
            y.register_hook(partial(_note, weakref.ref(event)))  # type: ignore[no-untyped-call]

    def _moments_of(self, x: Tensor) -> Moments:
        """Return the moments of a tensor; those of the input of a call were measured as the output of another."""
        known: tuple[int, Moments] | None = self._measured.get(x)  # type: ignore[no-untyped-call]
        # Calls in place change the values and this number; tensors of inference mode have none and do not change.
        version = 0 if x.is_inference() else x._version
        if known is None or known[0] != version:
            known = version, moments(x.detach(), self.examples)
            self._measured[x] = known
        return known[1]


@dataclass(frozen=True)
class Moments:
    """E[x²] of a tensor, the share of its variance that is between examples, and the root of this part of it.

    The last two are NaN if axis 0 does not hold the examples.
    """

    second: float
    spread: float = nan
    deviation: float = nan


def moments(x: Tensor, examples: int) -> Moments:
    """Return the moments of values (examples, …), computed in float64 in one pass over pieces of them."""
    has_examples = x.dim() > 1 and len(x) == examples > 1
    first = x[:1].reshape(1, -1).double() if has_examples else torch.zeros((), dtype=torch.float64, device=x.device)
    squares, sums, apart = (torch.zeros_like(first).sum(), torch.zeros_like(first), torch.zeros_like(first).sum())
    for piece in in_pieces(x) if x.dim() else (x,):
        values = piece.reshape(len(piece) if has_examples else 1, -1).to(torch.float64, copy=True).contiguous()
        squares += torch.dot(values.view(-1), values.view(-1))
        if has_examples:
            # Without the first example, equal examples are exactly 0, and large means do not cancel.
            values -= first
            sums += values.sum(0, keepdim=True)
            apart += torch.dot(values.view(-1), values.view(-1))
    second = float(squares) / max(x.numel(), 1)
    if not has_examples:
        return Moments(second)
    between = max((float(apart) - float(sums.square().sum()) / examples) / max(x.numel(), 1), 0.0)
    # The variance is the mean of the variances over examples plus the variance of the means.
    whole = between + float((first + sums / examples).var(correction=0))
    return Moments(second, between / whole if whole > 0 else 0.0, between**0.5)


def _mean_square(values: Tensor) -> float:
    flat = values.reshape(-1)
    return float(torch.dot(flat, flat)) / max(len(flat), 1)


def _mean_cosine(x: Tensor) -> float:
    """Return the mean cosine of two rows."""
    inverse = x.norm(dim=1).clamp_min(1e-12).reciprocal()
    total = float((inverse @ x).square().sum())
    return (total / len(x) - 1) / (len(x) - 1)


def _mask(factors: tuple[Any, ...]) -> Tensor | None:
    """Return the factor that holds only zeros and ones, some of each."""
    for factor in factors:
        if isinstance(factor, Tensor) and factor.dim() and not factor.requires_grad and not factor.is_complex():
            is_one = factor == 1
            if bool(((factor == 0) | is_one).all()) and 0 < int(is_one.sum()) < factor.numel():
                return factor
    return None


def _note(of: weakref.ref[Event], gradient: Tensor) -> None:
    if (event := of()) is not None:
        event.gradient = sqrt(_mean_square(gradient.detach().double()))


def _describe(event: Event, seen: Seen) -> None:
    """Fill in the attributes that only some kinds have."""
    y = event.output.detach()
    if event.kind == "activation" and y.dim() > 1:
        units = y.movedim(1, -1) if y.dim() == 4 else y
        event.off = float((units.flatten(0, -2) <= 0).all(0).double().mean())
        flat = _FLAT.get(event.name.rstrip("_"))
        event.saturated = float(flat(y).double().mean()) if flat else nan
    elif event.name == "lstm":
        event.saturated = _saturated_gates(seen.args, y)
    elif event.name == "softmax" and y.dim() > 2:
        event.peaked = _peaked(y)
    elif event.kind == "attention" or event.name == "multi_head_attention_forward":
        event.peaked = _peaked(attention_weights(seen))
    elif event.kind == "norm":
        event.normalized = _normalized(event, seen)
    elif event.kind == "dropout":
        event.rate = active_rate(seen)


def active_rate(seen: Seen) -> float:
    """Return the rate of a call of dropout or of torch's attention; 0 if it is not active or another call."""
    if seen.call.name == "scaled_dot_product_attention":
        return float(seen.given("dropout_p", 4, 0.0))
    is_active = KINDS.get(seen.call.name) == "dropout" and seen.kwargs.get("train", seen.given("training", 2, True))
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
    """Return the share of saturated gates of an LSTM's first layer, from its outputs; NaN for packed sequences."""
    if not isinstance(args[1], (tuple, list)) or y.dim() != 3:
        return nan
    x, (hidden, _), weights, has_biases = args[:4]
    width = hidden.shape[-1]
    time = 1 if args[8] else 0
    before = torch.cat([torch.zeros_like(y.narrow(time, 0, 1)), y.narrow(time, 0, y.shape[time] - 1)], time)
    if weights[1].shape[1] != before.shape[-1] or len(weights) > 4:
        # The outputs are those of a later layer or of two directions.
        before = torch.zeros(*y.shape[:2], weights[1].shape[1], dtype=y.dtype, device=y.device)
    gates = F.linear(x, weights[0], weights[2] if has_biases else None)
    gates = gates + F.linear(before, weights[1], weights[3] if has_biases else None)
    gates = torch.cat([gates[..., : 2 * width], gates[..., 3 * width :]], -1).sigmoid()
    return float(_FLAT["sigmoid"](gates).double().mean())


def _normalized(event: Event, seen: Seen) -> int | None:
    """Return the number of values from which each statistic of a norm is computed; None for stored statistics."""
    examples, channels, *positions = (*event.shape, 1)
    if event.name in ("layer_norm", "rms_norm"):
        return int(prod(seen.given("normalized_shape", 1, ())))
    if event.name == "group_norm":
        return int(channels) // int(seen.given("num_groups", 1, 1)) * prod(positions)
    if event.name == "instance_norm":
        return prod(positions)
    return examples * prod(positions) if seen.given("training", 5, False) else None


@contextmanager
def recorded(model: nn.Module, inputs: Any, targets: Any = None) -> Iterator[Tape]:
    """Record the passes of the body through a network on these inputs, and the dataflow of the loss."""
    tape = Tape(next((len(tensor) for tensor in tensors(inputs) if tensor.dim()), 0))
    with tape.follow(model, inputs, targets):
        yield tape
