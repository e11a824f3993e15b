"""Propagate moments along the steps of a network, with a rule for each kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.errors import MissingValuesError
from normless.nn import Pointwise, ScaledActivation, ShiftedActivation
from normless.residual.classify import NORMS, window_size
from normless.signal.moments import (
    Moments,
    activated,
    broadcast,
    dropped,
    fitted,
    maximum,
    normalized,
    per_axis,
    placed,
)
from normless.signal.steps import Step, Steps
from normless.signal.weights import Rows, rows_of, weighted_moments

Shapes = Mapping[tuple[str, int], torch.Size]
# A rule returns the moments of a step's output, or a few words on why they are unknown.
Rule = Callable[["Propagation", Step, Moments], Moments | str]
Some = TypeVar("Some", bound=Rule)

# Rules by class of module, which come first, or by kind of step.
RULES: dict[str | type[nn.Module], Rule] = {
    "layout": lambda p, step, x: x,
    "parameter": lambda p, step, x: Moments.standard(p.power_of(step.parameters)),
    "padding": lambda p, step, x: "channels of zeros" if p.by_position or step.size == 1 else x.padded(step.size),
    "norm": lambda p, step, x: _normalized(p, step, x) or f"the norm {step.path}",
    "other": lambda p, step, x: f"an operation without a rule{f' at {step.place}' if step.place else ''}",
}

_MAX_POOLINGS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_CLOSE = 1e-6


def rule(*keys: str | type[nn.Module]) -> Callable[[Some], Some]:
    """Decorate a function as the rule of some kinds of steps or classes of modules."""

    def add(function: Some) -> Some:
        RULES.update(dict.fromkeys(keys, function))
        return function

    return add


@dataclass
class Propagation:
    """The moments of the steps of a network, each computed from the moments of its inputs.

    With `shapes`, moments are computed at every position. Norms and residual branches have their effect, and moments
    after an operation without a rule are unknown until a norm. Without `shapes`, moments are computed by channel,
    shape (1, C), averaged over positions, and show the scale that weights alone set. Norms then return their input, a
    residual sum is its skip path, inputs have second moment 1, and operations without a rule keep the scale.

    Attributes:
        model: the network.
        steps: its steps.
        inputs: the batch's first floating-point tensor, shape (B, …), or None.
        shapes: the shape of each layer's input in a pass, by path and call; None for moments by channel.
        training: whether norms use the batch's statistics and dropout is active.
        examples: the size of the batch.
        factors: factors of parameters by name, 1 if absent; for moments by channel.
        values: the moments of every step so far, or why they are unknown.
        reads: the moments of each layer's input, in its layout, by path and call.
        outputs: the moments of each layer's output, by path and call.
        rows: the rows of weight layers by their parameters.
    """

    model: nn.Module
    steps: Steps
    inputs: Tensor | None = None
    shapes: Shapes | None = None
    training: bool = True
    examples: int = 1
    factors: dict[str, float] = field(default_factory=dict, init=False)
    values: list[Moments | str] = field(default_factory=list, init=False)
    reads: dict[tuple[str, int], Moments | str] = field(default_factory=dict, init=False)
    outputs: dict[tuple[str, int], Moments | str] = field(default_factory=dict, init=False)
    rows: dict[tuple[str, ...], Rows] = field(default_factory=dict, init=False)

    @property
    def by_position(self) -> bool:
        """Whether moments are computed at every position."""
        return self.shapes is not None

    def value(self, step: Step) -> Moments | str:
        """Compute the moments of a step's output."""
        known = self.values[step.reads[0]] if step.reads else Moments.standard()
        key, shape = (step.path, step.call), self.shape_of(step)
        if self.by_position and not step.reads and step.kind != "input":
            known = f"{step.kind} values"
        if isinstance(known, Moments) and shape is not None:
            known = fitted(known, shape) or f"the layout that {step.path} reads"
        output = self._applied(step, known) if isinstance(known, Moments) else _normalized(self, step, None) or known
        if step.path:
            self.reads[key], self.outputs[key] = known, output
        return output

    def _applied(self, step: Step, x: Moments) -> Moments | str:
        apply = next((RULES[kind] for kind in type(step.module).__mro__ if kind in RULES), RULES[step.kind])
        try:
            output = apply(self, step, x)
        except (RuntimeError, TypeError, ValueError, IndexError):
            # A module that does not support float64 or this shape.
            if step.kind in ("weight", "parameter", "factor"):
                raise
            output = f"{step.path or step.kind}, which raised an error"
        return output if self.by_position or isinstance(output, Moments) else x

    def of(self, index: int) -> Moments:
        """Return the moments of a step, which are always known by channel."""
        moments = self.values[index]
        assert isinstance(moments, Moments)
        return moments

    def shape_of(self, step: Step) -> torch.Size | None:
        """Return the shape of a layer's input, None if unknown."""
        return (self.shapes or {}).get((step.path, step.call))

    def rows_of(self, step: Step) -> Rows:
        """Return the rows of a weight layer."""
        if step.parameters not in self.rows:
            self.rows[step.parameters] = rows_of(self.model, step)
        return self.rows[step.parameters]

    def power_of(self, names: tuple[str, ...]) -> float:
        """Return the second moment of a sum of learned tensors."""
        return sum(self.factors.get(name, 1.0) ** 2 * mean_square(self.model.get_parameter(name)) for name in names)


def mean_square(tensor: Tensor) -> float:
    """Return the mean square of a learned tensor; raise MissingValuesError on the meta device."""
    if tensor.is_meta:
        raise MissingValuesError("A learned tensor has no values.")
    return float(tensor.detach().double().square().mean())


@rule("input")
def _input(p: Propagation, step: Step, x: Moments) -> Moments | str:
    is_first = step is next(other_step for other_step in p.steps.steps if other_step.kind == "input")
    if p.inputs is None or p.inputs.dim() < 2 or not is_first:
        return "an input that is not a batch of floating-point numbers"
    variance, mean = torch.var_mean(p.inputs.double(), dim=0, correction=0, keepdim=True)
    return Moments.of(mean, variance)


@rule("weight")
def _weight(p: Propagation, step: Step, x: Moments) -> Moments | str:
    if not p.by_position:
        rows = p.rows_of(step)
        factor, shift = (p.factors.get(name or "", 1.0) for name in (rows.weight, rows.bias))
        return rows.applied(x, factor, shift, step.size)
    output = None if step.module is None else weighted_moments(step.module, x.stacked())
    if output is None:
        return f"the weights of {step.path}"
    mean, variance, noise = output.unsqueeze(1)
    return Moments(mean, variance, noise, split=x.split)


def _normalized(p: Propagation, step: Step, x: Moments | None) -> Moments | None:
    """Return the moments after a norm, also for an unknown input if they do not depend on it; else None."""
    shape = p.shape_of(step)
    if step.kind != "norm" or shape is None or not isinstance(step.module, NORMS):
        return None
    return normalized(step.module, x, shape, p.training)


@rule("activation")
def _activation(p: Propagation, step: Step, x: Moments) -> Moments | str:
    return f"the activation {step.path}" if step.module is None else activated(step.module, x, p.examples)


@rule(ShiftedActivation)
def _shifted(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Apply φ(s·x + b₁) + b₂; a ReLU passes rectified inputs on unchanged."""
    module = step.module
    assert isinstance(module, ShiftedActivation)
    x = x.times(module.scale) if isinstance(module, ScaledActivation) else x
    return _plus(activated(module.activation, _plus(x, module.input_bias), p.examples), module.output_bias)


def _plus(x: Moments, bias: Tensor | None) -> Moments:
    """Return the moments after adding a bias of one element."""
    return x if bias is None else replace(x, mean=x.mean + bias.detach().double())


@rule(Pointwise)
def _pointwise(p: Propagation, step: Step, x: Moments) -> Moments | str:
    module = step.module
    assert isinstance(module, Pointwise)
    y = activated(Pointwise(module.function, float(module.alpha), float(module.shift or 0)), x, p.examples)
    if module.weight is not None:
        y = y.times(module.placed(module.weight, y.mean))
    return y if module.bias is None else replace(y, mean=y.mean + module.placed(module.bias, y.mean))


@rule("dropout")
def _dropout(p: Propagation, step: Step, x: Moments) -> Moments | str:
    output = dropped(step.module, x, p.examples) if p.training and step.module is not None else None
    return output or (f"the dropout {step.path}" if p.training else x)


@rule("factor")
def _factor(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Multiply by a constant or a learned scale; moments by channel use the root mean square of the scale."""
    if not (step.parameters and p.by_position):
        return x.times(step.size * sqrt(p.power_of(step.parameters)) if step.parameters else step.size)
    single = len(step.parameters) == len(step.reads) == 1
    factor = per_axis(p.model.get_parameter(step.parameters[0]).double(), x.mean.shape) if single else None
    return f"the factor {step.path}" if factor is None else x.times(factor * step.size)


@rule("max_pool")
def _max_pool(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Take the maximum of independent elements with the mean and second moment over the window's positions."""
    if not p.by_position:
        return maximum(x, step.size)
    pool, values = step.module, placed(x, step.shape)
    dilated = getattr(pool, "dilation", 1) not in (1, (1,), (1, 1), (1, 1, 1))
    if not isinstance(pool, _MAX_POOLINGS) or dilated or values is None or not x.split:
        return "a max pooling"
    average, sides = getattr(F, f"avg_pool{x.mean.dim() - 2}d"), (pool.stride, pool.padding, pool.ceil_mode)
    mean, second = (average(part, pool.kernel_size, *sides, False) for part in (values.mean, values.second))
    inside = average(torch.ones_like(values.mean[:, :1]), pool.kernel_size, *sides, True) * window_size(pool)
    element = Moments.of(mean, (second - mean.square()).clamp_min(0), rectified=x.is_rectified)
    return maximum(element, inside.round().clamp_min(1), p.examples)


@rule("average_pool")
def _average_pool(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Average n independent positions: the mean of their means, 1/n of the mean of their variances."""
    if not p.by_position:
        return x.averaged(step.size)
    pool, values = step.module, placed(x, step.shape)
    if pool is None or values is None or not x.split or getattr(pool, "divisor_override", None):
        return "an average"
    y = values.reshaped(pool)
    return y.averaged(window_size(pool) if hasattr(pool, "kernel_size") else values.mean.numel() / y.mean.numel())


@rule("attention")
def _attention(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Average T values v_j with weights a_j = softmax(l)_j of normal logits l = q·k / √d.

    Each weight has mean 1/T and, with s² = E[q²] Var_j[k] the variance of logits over random q and k,
    E[a_j²] = r/T², r = min(e^{s²}, T): weights are lognormal, and T ≫ e^{s²}. If values are independent of weights,

        E[y] = v̄    E[y²] = (r/T) E[v²]‾ + (1 - r/T) (T v̄² - E[v]²‾) / (T - 1),

    with bars for means over positions. Keys and values read the same D features, which the weights e^l shift in the
    direction of the query; this adds (1 - r/T) s² Var[v]‾ / D. For small logits y is the mean of the values.
    """
    if not p.by_position:
        return x.averaged(step.size)
    query, key = (p.values[read] for read in step.reads[1:3]) if len(step.reads) > 2 else ("", "")
    if isinstance(query, str) or isinstance(key, str):
        return "an attention with unknown logits"
    if not (x.split and query.split and key.split) or x.mean.dim() != 3 or key.mean.dim() != 3:
        return "an attention whose values have an unknown mean"
    count = x.mean.shape[1]
    spread = float((key.variance + (key.mean - key.mean.mean(1, keepdim=True)).square()).mean())
    logits = query.power * spread
    share = min(exp(min(logits, 700.0)), count) / count
    mean = x.mean.mean(1, keepdim=True)
    between = (count * mean.square() - x.mean.square().mean(1, keepdim=True)) / max(count - 1, 1)
    shift = logits / x.mean.shape[2] * x.variance.mean(1, keepdim=True)
    second = share * x.second.mean(1, keepdim=True) + (1 - share) * (between + shift)
    wide = (1, query.mean.shape[1], x.mean.shape[2])
    output = Moments.of(mean, (second - mean.square()).clamp_min(0), p.examples)
    return output.reshaped(lambda part: part.expand(wide))


@rule("gate")
def _gate(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Multiply by an independent factor: weight layers separate both from their common ancestors."""
    if len(step.reads) < 2:
        return "a product"
    factor = p.values[step.reads[1]]
    if isinstance(factor, str):
        return factor
    if not p.by_position:
        return x.product(factor.with_channels(x.mean.shape[1]))
    if not p.steps.is_independent(*step.reads):
        return "a product of factors that are not independent"
    wide = broadcast(factor, x.mean.shape)
    return "a product of different shapes" if wide is None else x.product(wide, p.examples)


@rule(nn.GLU)
def _glu(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Compute a ⊙ σ(b) of the halves a and b, which are independent outputs of different weights."""
    if not p.by_position or not isinstance(step.module, nn.GLU):
        return x
    dim = step.module.dim
    value, gate = x.reshaped(lambda part: part.chunk(2, dim)[0]), x.reshaped(lambda part: part.chunk(2, dim)[1])
    return value.product(activated(nn.Sigmoid(), gate), p.examples)


@rule("add")
def _add(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Add activations that are not a residual sum; by channel, as independent normal variables."""
    if p.by_position:
        unknown = len(step.reads) < 2 or step.parameters
        return "an addition that is not a residual sum" if unknown else _sum(p, step, x)
    others = [p.of(read) for read in step.reads[1:]]
    others += [Moments.standard(p.power_of(step.parameters))] if step.parameters else []
    for term in others:
        count = max(x.mean.shape[1], term.mean.shape[1])
        x = replace(x.with_channels(count).plus(term.with_channels(count)), positive=None)
    return x


@rule("sum")
def _sum(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Add skip path and branches, each with its factor, as uncorrelated variables (De & Smith, appendix C)."""
    if not p.by_position:
        return x
    shares = step.shares or (1.0,) * len(step.reads)
    total = x.times(shares[0])
    for branch, share in zip((p.values[read] for read in step.reads[1:]), shares[1:], strict=True):
        if share == 0:
            continue
        wide = branch if isinstance(branch, str) else fitted(branch, x.mean.shape) or "a sum of different shapes"
        if isinstance(wide, str):
            return wide
        total = total.plus(wide.times(share))
    return total


@rule("join")
def _join(p: Propagation, step: Step, x: Moments) -> Moments | str:
    """Concatenate channels, without learned tokens, since a norm treats tokens separately."""
    if p.by_position:
        return "a concatenation"
    pairs = [pair for pair in zip(step.reads, step.shares, strict=True) if p.steps[pair[0]].kind != "parameter"]
    parts, whole = [p.of(read) for read, _ in pairs], sum(share for _, share in pairs)
    shares, channels = [share / whole for _, share in pairs], [part.mean.shape[1] for part in parts]
    if not parts:
        return x
    if all(abs(count / sum(channels) - share) < _CLOSE for count, share in zip(channels, shares, strict=True)):
        mean, variance = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("mean", "variance"))
        return Moments.of(mean, variance, rectified=all(part.is_rectified for part in parts))
    mean = torch.stack([share * part.pooled().mean for share, part in zip(shares, parts, strict=True)]).sum(0)
    second = sum(share * part.power for share, part in zip(shares, parts, strict=True))
    return Moments.of(mean, second - mean.square())
