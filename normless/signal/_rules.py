"""The moments after each operation: a table of rules by the operations' names in the recorded dataflow.

Some names are not those of an ATen operation: `residual_sum` is the addition of branches to a skip path; `gate` is a
product of two activations, `attention` one of values with weights that others determine; `norm`, `direction` and
`activation` are layers of several operations, at their last one; `weight` is any other layer with a learned weight.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from math import exp, prod, sqrt
from typing import Any

import torch
from torch.nn import functional as F

from normless._internal.reach import reachable
from normless.residual._classify import NORMS
from normless.residual._graph import Operand
from normless.residual._operations import ACTIVATION, ATTENTION, DROPOUT, LAYOUT, NORM
from normless.signal._moments import Moments, activated, broadcast, fitted, maximum, normalized
from normless.signal._propagation import (
    RULES as RULES,
    Propagation as Propagation,
    mean_square as mean_square,
    rule as rule,
)
from normless.signal._quadrature import RealFunction
from normless.signal._weights import LINEAR, rows_of, weighted_moments

_CLOSE = 1e-6


@rule("input", kind="input")
def _input(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Return mean and variance of each feature over the batch."""
    is_first = at == next((at for at, operation in enumerate(p.flow.operations) if operation.floating), None)
    if p.inputs is None or p.inputs.dim() < 2 or not is_first:
        return "an input that is not a batch of floating-point numbers"
    variance, mean = torch.var_mean(p.inputs.double(), dim=0, correction=0, keepdim=True)
    return Moments.of(mean, variance)


@rule("parameter", "embedding", kind="parameter")
def _parameter(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Return the mean square of the learned tensor, by channel."""
    return Moments.standard(p.power_of(p.parameters(at))) if p.flow[at].parameters else x


@rule(*LAYOUT)
def _layout(p: Propagation, at: int, x: Moments) -> Moments | str:
    return x


@rule(*LINEAR, "weight", kind="weight")
def _weight(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Compute E[y] = W∗E[x] + b and Var[y] = W²∗Var[x]; see `weighted_moments` and, by channel, `Rows.applied`."""
    if not p.by_position:
        rows = rows_of(p, at)
        factor, shift = (p.factors.get(name or "", 1.0) for name in (rows.weight, rows.bias))
        return rows.applied(x, factor, shift)
    return weighted_moments(p, at, x) or f"the weights of {p.place(at)}"


@rule("norm", "direction", *NORM, kind="norm")
def _norm(p: Propagation, at: int, x: Moments | str) -> Moments | str:
    """Normalize; after some norms moments do not depend on those of the input, see `normalized`."""
    module, shape = p.module(at), p.flow[p.reads[at][0]].shape
    known, output = (None if isinstance(x, str) else x), None
    if p.by_position and isinstance(module, NORMS) and shape is not None:
        output = normalized(module, known, torch.Size((p.examples, *shape[1:])), p.training)
    return output or (x if isinstance(x, str) else f"the norm {p.place(at)}")


@rule("activation", "erf", *ACTIVATION - {"prelu", "rrelu"}, kind="activation")
def _activation(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Compute E[φ(x)] and Var[φ(x)] of the operation's function φ, or of the module that is several operations."""
    operation, module = p.flow[at], p.module(at)
    if p.names[at] != "activation":
        return activated(elementwise(operation.name, *operation.arguments[1:]), x, p.examples)
    return f"the activation {p.place(at)}" if module is None else activated(module, x, p.examples)


@cache
def elementwise(name: str, *arguments: Any) -> RealFunction:
    """Return the function of an operation of one tensor with these further arguments."""
    function: Any = F.relu if name == "relu" else getattr(torch.ops.aten, name)
    if name == "gelu" and arguments:
        return partial(function, approximate=arguments[0])
    return (lambda x: function(x, *arguments)) if arguments else function


@rule("dropout", *DROPOUT)
def _dropout(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Drop activations, channels or examples at a rate r: E[x] is unchanged, E[x²] becomes E[x²] / (1 - r)."""
    if not p.training or p.layers.kind(at) != "dropout":
        return x
    module, (_, *arguments) = p.module(at), p.flow[at].arguments
    rate = arguments[0] if p.flow[at].name in DROPOUT else getattr(module, "drop_prob", None)
    if not isinstance(rate, float) or not getattr(module, "scale_by_keep", True):
        return f"the dropout {p.place(at)}"
    return Moments.of(x.mean, x.second / (1 - rate) - x.mean.square(), p.examples, split=x.split)


@rule("mul", "div", "addcmul")
def _scale(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Multiply by a constant or a learned scale; moments by channel use the root mean square of the scale."""
    learned, name = p.parameters(at), p.flow[at].name
    factor = p.constant(at, x.mean.shape) if p.by_position or not learned else sqrt(p.power_of(learned))
    if factor is None or len(p.reads[at]) > 1:
        return f"the factor {p.place(at)}"
    return x.times(1 / factor if name == "div" else factor)


@rule("gate", kind="gate")
def _gate(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Multiply by an independent factor: weight layers separate both from their common ancestors."""
    factor = p.values[p.reads[at][1]]
    if isinstance(factor, str):
        return factor
    if not p.by_position:
        return x.product(factor.with_channels(x.mean.shape[1]))
    ways = (reachable([read], lambda at: () if p.kinds[at] == "weight" else p.reads[at]) for read in p.reads[at])
    if set.intersection(*map(set, ways)):
        return "a product of factors that are not independent"
    wide = broadcast(factor, x.mean.shape)
    return "a product of different shapes" if wide is None else x.product(wide, p.examples)


@rule("glu")
def _glu(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Compute a ⊙ σ(b) of the halves a and b, which are independent outputs of different weights."""
    if not p.by_position:
        return x
    dim = (*p.flow[at].arguments[1:], -1)[0]
    value, gate = (x.reshaped(lambda part, half=half: part.chunk(2, dim)[half]) for half in (0, 1))  # type: ignore[misc]
    return value.product(activated(torch.sigmoid, gate), p.examples)


@rule("attention", kind="attention")
def _attention(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Average T values v_j with weights a_j = softmax(l)_j of normal logits l = q·k / √d.

    Each weight has mean 1/T and, with s² = E[q²] Var_j[k] the variance of logits over random q and k,
    E[a_j²] = r/T², r = min(e^{s²}, T): weights are lognormal, and T ≫ e^{s²}. If values are independent of weights,

        E[y] = v̄    E[y²] = (r/T) E[v²]‾ + (1 - r/T) (T v̄² - E[v]²‾) / (T - 1),

    with bars for means over positions. Keys and values read the same D features, which the weights e^l shift in the
    direction of the query; this adds (1 - r/T) s² Var[v]‾ / D. For small logits y is the mean of the values.
    """
    value, *others = p.reads[at]
    if not p.by_position:
        return x.averaged(((p.flow[value].shape or ())[-2:-1] or (1,))[0])
    # With a mask, a dropout or a causal attention the logits are not those of all positions.
    flags = [part for part in p.flow[at].arguments if not isinstance(part, Operand)]
    is_plain = p.flow[at].name in ATTENTION and len(others) == 2 and not any(flags)
    query, key = (p.values[other] for other in others) if is_plain else ("", "")
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


@rule("mean", *(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)), kind="pool")
def _average_pool(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Average n independent positions: the mean of their means, 1/n of the mean of their variances."""
    if not p.by_position:
        return x.averaged(_pooled(p, at))
    name, arguments = p.flow[at].name, p.flow[at].arguments[1:]
    y = x.reshaped(lambda part: getattr(torch.ops.aten, name)(part, *arguments))
    count = prod(arguments[0]) if name.startswith("avg") else x.mean.numel() / y.mean.numel()
    return y.averaged(count) if x.split else "an average of unknown means"


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "adaptive_max_pool2d", kind="pool")
def _max_pool(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Take the maximum of independent elements with the mean and second moment over the window's positions."""
    if not p.by_position:
        return maximum(x, _pooled(p, at))
    name, (_, kernel, *given) = p.flow[at].name, p.flow[at].arguments
    defaults: list[Any] = [(), 0, (1,), False]
    stride, padding, dilation, ceil = [*given, *defaults[len(given) :]]
    if name.startswith("adaptive") or {*dilation} != {1} or not x.split:
        return "a max pooling"
    average, sides = getattr(F, f"avg_pool{x.mean.dim() - 2}d"), (stride or kernel, padding, ceil)
    mean, second = (average(part, kernel, *sides, False) for part in (x.mean, x.second))
    inside = average(torch.ones_like(x.mean[:, :1]), kernel, *sides, True) * prod(kernel)
    element = Moments.of(mean, (second - mean.square()).clamp_min(0), rectified=x.is_rectified)
    return maximum(element, inside.round().clamp_min(1), p.examples)


def _pooled(p: Propagation, at: int) -> float:
    """Return the number of independent elements of a pooling: neighbours count as √n, all positions as n."""
    is_window = p.flow[at].name.startswith(("avg", "max"))
    return max(sqrt(prod(p.flow[at].arguments[1])) if is_window else _ratio(p, p.reads[at][0], at), 1.0)


@rule("add", "sub", kind="add")
def _add(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Add a constant to the mean, or activations as uncorrelated; by channel, learned tensors as independent ones."""
    learned, others = p.parameters(at), p.reads[at][1:]
    if p.by_position and others:
        return _sum(p, at, x)
    constant = p.constant(at, x.mean.shape) if not others else None
    if p.by_position or isinstance(constant, (int, float)) or (constant is not None and constant.numel() == 1):
        sign = -1.0 if p.flow[at].name == "sub" else 1.0
        return "an addition of unknown values" if constant is None else x.shifted(sign * constant)
    for term in (*map(p.of, others), *([Moments.standard(p.power_of(learned))] if learned else [])):
        count = max(x.mean.shape[1], term.mean.shape[1])
        x = replace(x.with_channels(count).plus(term.with_channels(count)), positive=None)
    return x


@rule("rsub")
def _subtract(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Subtract from a constant."""
    constant = p.constant(at, x.mean.shape) if len(p.reads[at]) == 1 else None
    if not isinstance(constant, (int, float)):
        return "a subtraction from unknown values"
    return x.times(-1.0).shifted(constant)


@rule("residual_sum", kind="sum")
def _sum(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Add skip path and branches, each with its factor, as uncorrelated variables (De & Smith, appendix C)."""
    if not p.by_position:
        return x
    shares = p.shares(at)
    total = x.times(shares[0])
    for read, share in zip(p.reads[at][1:], shares[1:], strict=True):
        branch = p.values[read]
        if share == 0:
            continue
        wide = branch if isinstance(branch, str) else fitted(branch, x.mean.shape) or "a sum of different shapes"
        if isinstance(wide, str):
            return wide
        total = total.plus(wide.times(share))
    return total


@rule("cat", "stack", kind="join")
def _join(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Concatenate channels, without learned tokens, since a norm treats tokens separately."""
    if p.by_position:
        return "a concatenation"
    if len(p.reads[at]) == 1:
        return x.padded(min(1.0, _ratio(p, p.reads[at][0], at)))
    reads = [read for read in p.reads[at] if p.kinds[read] != "parameter"]
    if not reads:
        return x
    parts, sizes = [p.of(read) for read in reads], [_ratio(p, read, at) for read in reads]
    shares, channels = [size / sum(sizes) for size in sizes], [part.mean.shape[1] for part in parts]
    if all(abs(count / sum(channels) - share) < _CLOSE for count, share in zip(channels, shares, strict=True)):
        mean, variance = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("mean", "variance"))
        return Moments.of(mean, variance, rectified=all(part.is_rectified for part in parts))
    mean = torch.stack([share * part.pooled().mean for share, part in zip(shares, parts, strict=True)]).sum(0)
    second = sum(share * part.power for share, part in zip(shares, parts, strict=True))
    return Moments.of(mean, second - mean.square())


@rule("pad", "constant_pad_nd", kind="pool")
def _pad(p: Propagation, at: int, x: Moments) -> Moments | str:
    """Pad positions; by channel, add channels of zeros to an image, whose zero padding counts where it is read."""
    sizes, *how = p.flow[at].arguments[1:]
    if p.by_position:
        return "a padding" if any(how[1:]) else x.reshaped(lambda part: F.pad(part, sizes, *how[:1]))
    before, after = p.flow[p.reads[at][0]].shape, p.flow[at].shape
    return x.padded(min(1.0, before[1] / after[1])) if before and after and len(before) == 4 else x


def _ratio(p: Propagation, source: int, at: int) -> float:
    """Return the ratio of elements of two operations; unknown numbers count as 1."""
    before, after = (1 if shape is None else prod(shape) for shape in (p.flow[source].shape, p.flow[at].shape))
    return before / after
