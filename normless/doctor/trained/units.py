"""The units of activations over all batches: which never vary, and how many values lie where the slope is tiny."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils.weak import WeakIdKeyDictionary

from normless.doctor.facts.flow import KINDS, Call, Line
from normless.doctor.facts.tape import attention_weights
from normless.doctor.facts.tracer import Seen, Tracer
from normless.doctor.trained.limits import CERTAIN
from normless.doctor.trained.streams import Divisors, near_epsilon
from normless.nn.channels import has_channels_first
from normless.recording import Run
from normless.residual.classify import NORMS

# A unit whose values differ by less than this share of the layer's RMS is constant.
_CONSTANT = 1e-3
# Values where the slope is tiny: below 4 and 8 % of the largest for tanh and σ.
_FLAT: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: y.abs() > 0.98,
    "hardtanh": lambda y: y.abs() >= 1,
    "sigmoid": lambda y: (y - 0.5).abs() > 0.48,
    "hardsigmoid": lambda y: (y <= 0) | (y >= 1),
    "softsign": lambda y: y.abs() > 0.8,
}
# Calls that make layers with channels on axis 1, and those with features on the last axis.
_ON_FIRST = {name for name in KINDS if name.startswith("conv")} | {"batch_norm", "group_norm", "instance_norm"}
_ON_LAST = {"linear", "bilinear", "layer_norm", "rms_norm"}
_TURNED = {"transpose", "permute", "movedim", "swapaxes", "swapdims", "t", "T", "mT", "einsum", "matmul", "bmm"}
_PRODUCTS = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}


@dataclass(frozen=True)
class Origin:
    """The layer whose channels a tensor has, their axis, and the layer's number in the pass."""

    layer: str
    axis: int
    order: int


@dataclass
class Units:
    """An activation in all passes.

    Attributes:
        layer: the qualified name of the weight layer or norm that makes its units.
        activation: the place of the activation.
        name: its function or class.
        order: its number in the pass, by which it comes before or after weight layers.
        low, high: the smallest and largest value of each unit, shape (C,).
        squares: the sum of squares of all values.
        values, flat: the number of values, and of those where the slope is tiny.
        gates: whether its values are factors of others.
    """

    layer: str
    activation: str
    name: str
    order: int
    low: Tensor
    high: Tensor
    squares: float = 0.0
    values: int = 0
    flat: int = 0
    gates: bool = False

    @property
    def constant(self) -> Tensor:
        """Which units do not vary over all data."""
        return (self.high - self.low) <= _CONSTANT * sqrt(self.squares / max(self.values, 1))


@dataclass
class Attention:
    """An attention in all passes: for each head, the rows and those with nearly all weight on one position.

    Attributes:
        rows: the number of rows of a head.
        peaked, first: rows with more than 99.9 % on one position, and on the first one, shape (heads,).
    """

    rows: int
    peaked: Tensor
    first: Tensor


class Meter(Tracer):
    """Measures activations and attentions in passes, and notes the first value that is not finite.

    Attributes:
        attentions: by the place of the attention.
        near: for norms that are functions in forward code, by the module, the number of statistics whose variance is
            comparable with ε, of all statistics, and ε; those at the paths `divided` are measured there.
        units: by place, name and number in the pass.
        wrong: the module and line of the first result that is not finite, or None.
        last_weight: the order of the last weight layer.
    """

    def __init__(
        self, activations: Collection[str], layers: Mapping[str, nn.Module], divided: Mapping[str, Divisors]
    ) -> None:
        super().__init__()
        self.activations, self.layers, self.divided = frozenset(activations), layers, divided
        self.near: dict[str, tuple[int, int, float]] = {}
        self.units: dict[tuple[str, str, int], Units] = {}
        self.attentions: dict[str, Attention] = {}
        self.wrong: tuple[str, Line | None] | None = None
        self.last_weight = 0
        self._start()

    def _start(self) -> None:
        self.flow.calls.clear()
        self._runs: Counter[tuple[str, str]] = Counter()
        self._order = 0
        self._origins = WeakIdKeyDictionary()
        self._made_by: dict[Call, Units] = {}
        self._softmaxes: dict[Call, Attention] = {}

    @contextmanager
    def measuring(self, model: nn.Module, inputs: Any) -> Iterator[None]:
        """Measure the pass that the body makes."""
        self._start()
        with self.follow(model, inputs):
            yield

    def on_call(self, seen: Seen) -> None:
        """Measure an activation, and pass on the layer to which the channels of the result belong."""
        call, y = seen.call, seen.made[0]
        if not y.is_floating_point() or not call.is_signal:
            return
        self._order += 1
        kind = KINDS.get(call.name)
        if kind in ("weight", "norm") or call.name in ("matmul", "__matmul__"):
            self.last_weight = max(self.last_weight, self._order)
        if kind in ("weight", "norm", "activation") and self.wrong is None and not bool(y.isfinite().all()):
            self.wrong = call.path, call.line
        if call.name in _ON_FIRST or call.name in _ON_LAST:
            self._origins[y] = Origin(call.path, 1 if call.name in _ON_FIRST else -1, self._order)
        elif call.name not in _TURNED:
            self._inherit(seen.read, y)
        if call.name in _PRODUCTS:
            for source in call.sources():
                if (units := self._made_by.get(source.origin())) is not None:
                    units.gates = True
        if call.name in ("layer_norm", "rms_norm", "group_norm") and call.path not in self.divided:
            self._divide(seen)
        self._attend(seen)
        if kind == "activation" and self.activations.isdisjoint(run.path for run in self.stack):
            self._measure(call.path, call.name.rstrip("_"), y)

    def _attend(self, seen: Seen) -> None:
        """Measure the weights of an attention: a softmax that a product reads, or a function of torch."""
        call, y = seen.call, seen.made[0]
        if call.name == "softmax" and y.dim() > 2 and y.shape[-1] > 1:
            self._softmaxes[call] = attention_of(y)
        elif call.name in ("matmul", "__matmul__", "bmm", "einsum"):
            for source in call.sources():
                if (weights := self._softmaxes.pop(source.origin(), None)) is not None:
                    self._add(call.path, weights)
        elif call.name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
            with suppress(RuntimeError, TypeError, IndexError):
                self._add(call.path, attention_of(attention_weights(seen)))

    def _divide(self, seen: Seen) -> None:
        """Count the variances of a norm's input that are comparable with ε."""
        call, x = seen.call, seen.read[0]
        if call.name == "group_norm":
            groups = int(seen.given("num_groups", 1, 1))
            rows = x.detach().float().reshape(len(x) * groups, -1)
        else:
            axes = len(seen.given("normalized_shape", 1, (1,)))
            rows = x.detach().float().flatten(-axes)
        given = [value for value in (*seen.args[2:], *seen.kwargs.values()) if isinstance(value, float)]
        eps = given[-1] if given else torch.finfo(x.dtype).eps if call.name == "rms_norm" else 1e-5
        variance = rows.square().mean(-1) if call.name == "rms_norm" else rows.var(-1, correction=0)
        known, (near, varied) = self.near.get(call.path or "forward", (0, 0, eps)), near_epsilon(variance, eps)
        self.near[call.path or "forward"] = known[0] + near, known[1] + varied, eps

    def _add(self, place: str, seen: Attention) -> None:
        known = self.attentions.setdefault(place or "forward", seen)
        if known is not seen and known.peaked.shape == seen.peaked.shape:
            known.rows += seen.rows
            known.peaked, known.first = known.peaked + seen.peaked, known.first + seen.first

    def _inherit(self, read: list[Tensor], y: Tensor) -> None:
        """Pass on the origin of what was read; of a sum, that of the later layer."""
        known = [self._origins.get(tensor) for tensor in read if tensor.dim() == y.dim()]  # type: ignore[no-untyped-call]
        if origins := [origin for origin in known if origin is not None]:
            self._origins[y] = max(origins, key=lambda origin: origin.order)

    def on_leave(self, run: Run, output: Any) -> None:
        """Measure the output of an activation's module, and note the layer of the output of a layer's."""
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        with self.paused(), torch.no_grad():
            if run.path in self.divided:
                self.divided[run.path].see(run.inputs[0], output)
            if run.path in self.activations:
                self._measure(run.path, type(run.module).__name__.lower(), output)
            elif run.path in self.layers:
                self._origins[output] = Origin(run.path, channel_of(run.module, output), self._order)

    def _measure(self, path: str, name: str, y: Tensor) -> None:
        origin: Origin | None = self._origins.get(y)  # type: ignore[no-untyped-call]
        call = self.flow.of(y)
        # What depends on weights alone, as biases of positions, does not vary over the data.
        if origin is None or call is None or not call.is_signal or y.dim() < 2 or not y.numel():
            return
        key = path, name, self._runs[path, name]
        self._runs[path, name] += 1
        rows = y.detach().movedim(origin.axis, 0).flatten(1)
        low, high = rows.amin(1), rows.amax(1)
        units = self.units.get(key)
        if units is None or units.low.shape != low.shape:
            units = self.units[key] = Units(origin.layer, path or "forward", name, self._order, low, high)
        units.low, units.high = torch.minimum(units.low, low), torch.maximum(units.high, high)
        units.squares += float(rows.float().square().sum())
        units.values += rows.numel()
        if name in _FLAT:
            units.flat += int(_FLAT[name](rows).sum())
        self._made_by[call] = units

    def before_output(self) -> list[Units]:
        """Return the activations that a later weight layer reads, not those of the network's output."""
        return [units for units in self.units.values() if units.order < self.last_weight and isfinite(units.squares)]


def attention_of(weights: Tensor) -> Attention:
    """Count the rows of weights (B, heads, queries, keys), or without heads; a causal first row has no choice."""
    heads = weights.detach() if weights.dim() == 4 else weights.detach().flatten(0, -3).unsqueeze(1)
    is_square = heads.shape[-1] == heads.shape[-2]
    if is_square and not bool(heads.triu(1).any()):
        heads = heads[:, :, 1:]
    largest = heads.max(-1)
    peaked = largest.values > CERTAIN
    first = peaked & (largest.indices == 0)
    return Attention(peaked[:, 0].numel(), peaked.sum((0, 2)), first.sum((0, 2)))


def channel_of(module: nn.Module, y: Tensor) -> int:
    """Return the axis of the channels of a layer's output."""
    if has_channels_first(module) or isinstance(module, _ConvNd):
        return min(1, y.dim() - 1)
    return -1 if y.dim() <= 3 or isinstance(module, (nn.Linear, *NORMS)) else 1
