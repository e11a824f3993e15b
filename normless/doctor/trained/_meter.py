"""What the passes of a trained network show of its activations, by the layers that make them, and attentions."""

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

from normless.doctor.facts._flow import KINDS, CodeLine, TensorCall
from normless.doctor.facts._tape import attention_weights
from normless.doctor.facts._tracer import Seen, Tracer
from normless.doctor.trained._limits import CERTAIN
from normless.doctor.trained._streams import Divisors
from normless.nn._channels import has_channels_first
from normless.recording._modules import ModuleRun
from normless.residual._classify import NORMS

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
# The axis of the channels of what some calls make, and calls that turn axes.
_AXES = {name: 1 for name in KINDS if name.startswith("conv")}
_AXES |= {"batch_norm": 1, "group_norm": 1, "instance_norm": 1}
_AXES |= {"linear": -1, "bilinear": -1, "layer_norm": -1, "rms_norm": -1}
_MATRICES = {"matmul", "__matmul__", "bmm", "einsum"}
_TURNED = {"transpose", "permute", "movedim", "swapaxes", "swapdims", "t", "T", "mT"} | _MATRICES
_PRODUCTS = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}


@dataclass(frozen=True)
class ChannelOrigin:
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
        order: its number in the pass, by which it comes before or after weight layers.
        low, high: the smallest and largest value of each unit, shape (C,).
        squares: the sum of squares of all values.
        values, flat: the number of values, and of those where the slope is tiny.
        gates: whether its values are factors of others.
        reader: the qualified name of a weight layer that reads the units, or None.
    """

    layer: str
    activation: str
    order: int
    low: Tensor
    high: Tensor
    squares: float = 0.0
    values: int = 0
    flat: int = 0
    gates: bool = False
    reader: str | None = None

    def see(self, rows: Tensor, is_flat: Callable[[Tensor], Tensor] | None) -> None:
        """Add values (C, …)."""
        self.low, self.high = torch.minimum(self.low, rows.amin(1)), torch.maximum(self.high, rows.amax(1))
        self.squares += float(rows.float().square().sum())
        self.values += rows.numel()
        self.flat += int(is_flat(rows).sum()) if is_flat else 0

    @property
    def constant(self) -> Tensor:
        """The units that do not vary over all data."""
        return (self.high - self.low) <= _CONSTANT * sqrt(self.squares / max(self.values, 1))


class Meter(Tracer):
    """Measures activations, attentions and divisors in passes, and notes the first value that is not finite.

    Attributes:
        attentions: by the place of the attention, the number of rows with nearly all weight on one position, and of
            all rows.
        units: by place, name and number in the pass.
        wrong: the module and line of the first result that is not finite, or None.
        last_weight: the order of the last weight layer.
        called: the paths of the modules that ran.
    """

    def __init__(
        self, activations: Collection[str], layers: Mapping[str, nn.Module], divided: Mapping[str, Divisors]
    ) -> None:
        super().__init__()
        self.activations, self.layers, self.divided = frozenset(activations), layers, divided
        self.units: dict[tuple[str, str, int], Units] = {}
        self.attentions: dict[str, tuple[int, int]] = {}
        self.wrong: tuple[str, CodeLine | None] | None = None
        self.last_weight = 0
        self.called: set[str] = set()

    @contextmanager
    def measuring(self, model: nn.Module, inputs: Any) -> Iterator[None]:
        """Measure the pass that the body makes."""
        self.flow.calls.clear()
        self._runs: Counter[tuple[str, str]] = Counter()
        self._order = 0
        self._origins = WeakIdKeyDictionary()
        self._made_by: dict[TensorCall, Units] = {}
        self._softmaxes: dict[TensorCall, tuple[int, int]] = {}
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
        if call.name in _AXES:
            self._origins[y] = ChannelOrigin(call.path, _AXES[call.name], self._order)
        elif call.name not in _TURNED:
            # A sum has the channels of the later layer.
            known = [self._origins.get(tensor) for tensor in seen.read if tensor.dim() == y.dim()]  # type: ignore[no-untyped-call]
            if origins := [origin for origin in known if origin is not None]:
                self._origins[y] = max(origins, key=lambda origin: origin.order)
        for source in call.sources() if call.name in _PRODUCTS or kind == "weight" else ():
            if (units := self._made_by.get(source.origin())) is not None:
                units.gates |= kind != "weight"
                units.reader = call.path if kind == "weight" else units.reader
        self._attend(seen)
        if kind == "activation" and self.activations.isdisjoint(run.path for run in self.stack):
            self._measure(call.path, call.name.rstrip("_"), y)

    def _attend(self, seen: Seen) -> None:
        """Measure the weights of an attention: a softmax that a product reads, or a function of torch."""
        call, y = seen.call, seen.made[0]
        found: list[tuple[int, int]] = []
        if call.name == "softmax" and y.dim() > 2 and y.shape[-1] > 1:
            self._softmaxes[call] = rows_on_one(y)
        elif call.name in _MATRICES:
            found = [self._softmaxes.pop(source.origin(), (0, 0)) for source in call.sources()]
        elif call.name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
            with suppress(RuntimeError, TypeError, IndexError):
                found = [rows_on_one(attention_weights(seen))]
        for peaked, rows in found:
            if rows:
                before = self.attentions.get(call.place, (0, 0))
                self.attentions[call.place] = before[0] + peaked, before[1] + rows

    def on_leave(self, run: ModuleRun, output: Any) -> None:
        """Measure the output of an activation's module, and note the layer of the output of a layer's."""
        self.called.add(run.path)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        with self.paused(), torch.no_grad():
            if run.path in self.divided:
                self.divided[run.path].see(run.inputs[0], output)
            if run.path in self.activations:
                self._measure(run.path, type(run.module).__name__.lower(), output)
            elif run.path in self.layers:
                self._origins[output] = ChannelOrigin(run.path, channel_of(run.module, output), self._order)

    def _measure(self, path: str, name: str, y: Tensor) -> None:
        origin: ChannelOrigin | None = self._origins.get(y)  # type: ignore[no-untyped-call]
        call = self.flow.of(y)
        # What depends on weights alone, as biases of positions, does not vary over the data.
        if origin is None or call is None or not call.is_signal or y.dim() < 2 or not y.numel():
            return
        key = path, name, self._runs[path, name]
        self._runs[path, name] += 1
        rows = y.detach().movedim(origin.axis, 0).flatten(1)
        units = self.units.get(key)
        if units is None or len(units.low) != len(rows):
            units = Units(origin.layer, path or "forward", self._order, rows.amin(1), rows.amax(1))
        units.see(rows, _FLAT.get(name))
        self.units[key] = self._made_by[call] = units

    def before_output(self) -> list[Units]:
        """Return the activations that a later weight layer reads, not those of the network's output."""
        return [units for units in self.units.values() if units.order < self.last_weight and isfinite(units.squares)]


def rows_on_one(weights: Tensor) -> tuple[int, int]:
    """Return the number of rows of attention weights (…, queries, keys) with nearly all weight on one key, of all.

    A causal first row has no choice.
    """
    is_square = weights.shape[-1] == weights.shape[-2]
    if is_square and not bool(weights.triu(1).any()):
        weights = weights[..., 1:, :]
    peaked = weights.detach().amax(-1) > CERTAIN
    return int(peaked.sum()), peaked.numel()


def channel_of(module: nn.Module, y: Tensor) -> int:
    """Return the axis of the channels of a layer's output."""
    if has_channels_first(module) or isinstance(module, _ConvNd):
        return min(1, y.dim() - 1)
    return -1 if y.dim() <= 3 or isinstance(module, (nn.Linear, *NORMS)) else 1
