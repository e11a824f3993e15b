"""The range of a call's results, by interval arithmetic on the recorded operations, and the lowest loss within it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import exp, inf, isfinite, isnan, log, nan
from typing import Any

import torch
from torch import Tensor

from normless.doctor.facts.flow import MOVES, PRODUCTS, Call, Range, Seen

# Functions with values in a fixed interval, for any argument.
_FIXED = {
    "sigmoid": (0.0, 1.0), "hardsigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "softmin": (0.0, 1.0),
    "tanh": (-1.0, 1.0), "softsign": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0),
    "cosine_similarity": (-1.0, 1.0), "gru": (-1.0, 1.0), "rnn_tanh": (-1.0, 1.0), "lstm": (-1.0, 1.0),
    "erf": (-1.0, 1.0), "relu6": (0.0, 6.0), "elu": (-1.0, inf), "selu": (-1.76, inf), "celu": (-1.0, inf),
    "gelu": (-0.171, inf), "silu": (-0.279, inf), "mish": (-0.309, inf), "hardswish": (-0.375, inf),
    "atan": (-1.571, 1.571), "arctan": (-1.571, 1.571), "sqrt": (0.0, inf),
    "softplus": (0.0, inf), "square": (0.0, inf), "abs": (0.0, inf), "relu": (0.0, inf),
    "log_softmax": (-inf, 0.0), "logsigmoid": (-inf, 0.0),
}  # fmt: skip
_ADD = {"add", "__add__", "__radd__", "__iadd__"}
_SUB = {"sub", "__sub__", "__isub__", "subtract"}
_MUL = {"mul", "__mul__", "__rmul__", "__imul__", "multiply"}
_DIV = {"div", "__truediv__", "__itruediv__", "divide", "true_divide"}
_RECIPROCAL = {"reciprocal", "__rtruediv__", "__rdiv__"}
_KEEPING = MOVES | {"T", "mT", "t", "H", "mH", "mean", "amax", "amin", "max", "min", "__get__"}
_NORMS = {"norm", "vector_norm", "linalg_norm", "linalg_vector_norm"}
# Constants of more elements than this count as unbounded.
_SMALL = 4096
# The norm of a vector of norm 1, with rounding, is at most this.
_ONE = 1.001
# The number of halvings of the step by which the lowest loss is found, and the size that stands for infinity.
_HALVINGS, _FAR = 16, 50.0


_ANY = Range()


def range_of(seen: Seen) -> Range:
    """Return the range of the results of a call, from the ranges of what it read."""
    call, reads = seen.call, iter(seen.call.reads)
    operands = [_operand(value, reads) for value in seen.args[:2]]
    # Lists of tensors, for example of `cat`, take more than one read each.
    first = operands[0] if operands else _ANY
    name = call.name.removesuffix("_") if not call.name.startswith("__") else call.name
    if name in ("cat", "stack", "concat", "where", "maximum", "minimum"):
        parts = [_ANY if source is None else source.range or _ANY for source, _ in call.reads[name == "where" :]]
        return _union(parts)
    if name == "dropout" or name.startswith("dropout"):
        rate = float(seen.given("p", 1, 0.5))
        scale = 1 / (1 - rate) if rate < 1 else 1.0
        return replace(first, low=min(first.low, 0) * scale, high=max(first.high, 0) * scale, length=inf)
    if name in _KEEPING:
        return first
    if name == "normalize":
        return Range(-1.0, 1.0, call, length=1.0)
    if name == "sum" and call.reads and (factors := call.reads[0][0]) is not None and factors.name in _MUL:
        return _cosines(seen, factors)
    if name in PRODUCTS:
        return _product(seen, name)
    axis = _axis(seen) if name in ("softmax", "log_softmax") else None
    if axis is not None and seen.made[0].dim() and seen.made[0].shape[axis] == 1:
        return Range(float(name == "softmax"), float(name == "softmax"), call)
    if name in _FIXED:
        low, high = _FIXED[name]
        return Range(low, high, call)
    return _elementwise(seen, name, operands)


def _axis(seen: Seen) -> int | None:
    """Return the axis of a softmax, if it was given."""
    axis = seen.given("dim", 1)
    return axis if isinstance(axis, int) else None


def _operand(value: Any, reads: Any) -> Range:
    """Return the range of an argument: a number, a constant tensor, or the result of a recorded call."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Range(float(value), float(value))
    if not isinstance(value, Tensor):
        return _ANY
    source: Call | None = next(reads, (None, ()))[0]
    if source is not None and source.range is not None:
        return source.range
    is_constant = not value.requires_grad and (value.numel() == 1 if source is None else not source.is_signal)
    is_data = source is not None and source.kind in ("inputs", "targets")
    if not is_constant or is_data or (source is not None and source.is_trained) or value.is_complex():
        return _ANY
    return Range(float(value.min()), float(value.max())) if 0 < value.numel() <= _SMALL else _ANY


def _union(parts: list[Range]) -> Range:
    low, high = min((part.low for part in parts), default=-inf), max((part.high for part in parts), default=inf)
    return Range(low, high, next((part.source for part in parts if part.source is not None), None))


def _product(seen: Seen, name: str) -> Range:
    """Return the range of a product of matrices: cosines, if the rows and columns have norm 1."""
    call = seen.call
    sources = [_ANY if source is None else source.range or _ANY for source, _ in call.reads[:2]]
    is_sum = len(call.reads) > 2
    lengths = [source.length for source in sources]
    if len(sources) < 2 or is_sum or not all(map(isfinite, lengths)):
        return _ANY
    if name != "einsum":
        # The axes of the norms must be those of the product.
        a, b = seen.args[:2]
        axes = (-1, -1 if name == "linear" else -2)
        norms = [float(read.detach().norm(dim=axis).max()) for read, axis in zip((a, b), axes, strict=True)]
        if any(norm > _ONE * length for norm, length in zip(norms, lengths, strict=True)):
            return _ANY
    limit = lengths[0] * lengths[1]
    return _within(seen, limit)


def _cosines(seen: Seen, factors: Call) -> Range:
    """Return the range of a sum of products of two vectors of bounded norm."""
    lengths = [_ANY.length if source is None else (source.range or _ANY).length for source, _ in factors.reads[:2]]
    limit = lengths[0] * lengths[1] if len(lengths) == 2 else inf
    return _ANY if not isfinite(limit) or _axis(seen) is None else _within(seen, limit)


def _within(seen: Seen, limit: float) -> Range:
    """Return the range of results up to a limit, if they are; unbounded otherwise."""
    largest = float(seen.made[0].detach().abs().max())
    return Range(-limit, limit, seen.call) if largest <= _ONE * limit else _ANY


def _elementwise(seen: Seen, name: str, operands: list[Range]) -> Range:
    """Return the range of arithmetic, of clamps and of monotonic functions."""
    a, b = (*operands, _ANY, _ANY)[:2]
    call, source = seen.call, a.source or b.source
    if name in ("clamp", "clip", "hardtanh", "clamp_min", "clamp_max"):
        return _clamped(seen, name, a)
    if name in _ADD | _SUB:
        if seen.kwargs.get("alpha", 1) != 1:
            return _ANY
        b = b if name in _ADD else Range(-b.high, -b.low)
        return Range(a.low + b.low, a.high + b.high, source)
    if name in ("__rsub__", "rsub"):
        return Range(b.low - a.high, b.high - a.low, source)
    if name in _MUL:
        return _times(a, b, source)
    if name in _DIV and _is_normalized(call):
        return Range(-1.0, 1.0, call, length=1.0)
    if name in _DIV and _is_share(call, a):
        return Range(0.0, 1.0, call)
    if name in _DIV:
        return _times(a, _inverse(b), source)
    if name in _RECIPROCAL:
        top = b if name != "reciprocal" else Range(1.0, 1.0)
        return _times(top, _inverse(a), source)
    if name in ("neg", "__neg__"):
        return a.mapped(lambda x: -x)
    if name == "exp":
        return replace(a.mapped(lambda x: exp(min(x, 700.0)) if x < inf else inf), source=source or call)
    if name == "log" and a.low >= 0:
        return a.mapped(lambda x: -inf if x == 0 else log(x) if x < inf else inf)
    if name in ("pow", "__pow__") and b.low == b.high and b.low % 2 == 0:
        return Range(0.0, inf, source or call)
    return _ANY


def _times(a: Range, b: Range, source: Call | None) -> Range:
    ends = [0.0 if 0 in (x, y) else x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    factor, scaled = (a, b) if a.low == a.high else (b, a)
    length = abs(factor.low) * scaled.length if factor.low == factor.high else inf
    return Range(min(ends), max(ends), source, length)


def _inverse(a: Range) -> Range:
    """Return the range of 1/x; unbounded if x may be on both sides of 0."""
    if a.low < 0 < a.high:
        return _ANY
    if a.low >= 0:
        return Range(1 / a.high if a.high else inf, 1 / a.low if a.low else inf, a.source)
    return Range(1 / a.high if a.high else -inf, 1 / a.low, a.source)


def _clamped(seen: Seen, name: str, a: Range) -> Range:
    limits = dict(zip(("min", "max") if name != "clamp_max" else ("max",), seen.args[1:], strict=False)) | seen.kwargs
    if name == "hardtanh":
        limits = {
            "min": limits.get("min_val", limits.get("min", -1.0)),
            "max": limits.get("max_val", limits.get("max", 1.0)),
        }
    low, high = limits.get("min"), limits.get("max")
    if any(isinstance(limit, Tensor) for limit in (low, high)):
        return _ANY
    low, high = -inf if low is None else float(low), inf if high is None else float(high)
    return Range(min(max(a.low, low), high), max(min(a.high, high), low), seen.call)


def _is_normalized(call: Call) -> bool:
    """Whether a division is that of vectors by their own norms, possibly with a lower limit on these."""
    if len(call.reads) < 2 or call.reads[0][0] is None or call.reads[1][0] is None:
        return False
    divided, by = call.reads[0][0], call.reads[1][0]
    while by.name in ("clamp", "clamp_min", "__add__", "add", *MOVES) and by.reads and by.reads[0][0] is not None:
        by = by.reads[0][0]
    return by.name in _NORMS and bool(by.reads) and by.reads[0][0] is divided and 1 in call.reads[1][1]


def _is_share(call: Call, a: Range) -> bool:
    """Whether a division is that of values from 0 on by their own sum."""
    by = call.reads[1][0] if len(call.reads) > 1 else None
    return a.low >= 0 and by is not None and by.name == "sum" and _is_same(by.reads[0][0], call.reads[0][0])


def _is_same(a: Call | None, b: Call | None, depth: int = 6) -> bool:
    """Whether two calls compute the same values: the same functions of the same values."""
    if a is b:
        return a is not None
    if a is None or b is None or depth == 0 or a.kind != "call" or (a.name, a.shape) != (b.name, b.shape):
        return False
    pairs = zip(a.reads, b.reads, strict=False)
    return 0 < len(a.reads) == len(b.reads) and all(_is_same(x, y, depth - 1) for (x, _), (y, _) in pairs)


def lowest_within(
    loss_at: Callable[[Tensor], Tensor], outputs: Tensor, low: float, high: float, far: float = _FAR
) -> float:
    """Return the lowest loss of outputs in an interval, by steps against the sign of the gradient; NaN if unknown.

    The step is halved each time, so that a loss that is a sum over outputs and convex in each of them is minimized.
    """
    found: list[float] = []
    far = max(far, 2 * float(outputs.detach().abs().max()))
    low, high = max(low, -far), min(high, far)
    values = outputs.detach().clamp(low, high)
    with suppress(RuntimeError, ValueError, TypeError, IndexError):
        for halving in range(_HALVINGS):
            values = values.detach().requires_grad_()
            with torch.enable_grad():
                loss = loss_at(values)
                (slope,) = torch.autograd.grad(loss, values)
            found.append(float(loss.detach()))
            values = (values - slope.sign() * (high - low) * 0.5**halving).clamp(low, high)
        found.append(float(loss_at(values.detach())))
        return min((value for value in found if not isnan(value)), default=nan)
    return nan
