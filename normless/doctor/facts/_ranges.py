"""The range of a call's results, by interval arithmetic on the recorded operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, inf, isfinite, log
from typing import Any

from torch import Tensor

from normless.doctor.facts._flow import MOVES, PRODUCTS, Range, TensorCall
from normless.doctor.facts._tracer import Seen

_ANY = Range()
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
# Functions of the ranges of two operands.
_OF_RANGES: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a + -b,
    "rsub": lambda a, b: b + -a,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a * b.inverse(),
    "rdiv": lambda a, b: b * a.inverse(),
    "reciprocal": lambda a, b: a.inverse(),
    "neg": lambda a, b: -a,
    "exp": lambda a, b: a.mapped(lambda x: exp(min(x, 700.0)) if x < inf else inf),
    "log": lambda a, b: a.mapped(lambda x: -inf if x <= 0 else log(x) if x < inf else inf) if a.low >= 0 else _ANY,
    "pow": lambda a, b: Range(0.0) if b.is_one_value and b.low % 2 == 0 else _ANY,
}
_KEEPING = MOVES | {"T", "mT", "t", "H", "mH", "mean", "amax", "amin", "max", "min", "__get__"}
_NORMS = {"norm", "vector_norm", "linalg_norm", "linalg_vector_norm"}
# Constants of more elements than this count as unbounded.
_SMALL = 4096
# The norm of a vector of norm 1, with rounding, is at most this.
_ONE = 1.001


def range_of(seen: Seen) -> Range:
    """Return the range of the results of a call, from the ranges of what it read."""
    call, name, reads = seen.call, seen.call.plain, iter(seen.call.reads)
    a, b, *_ = (*(_operand(value, reads) for value in seen.args[:2]), _ANY, _ANY)
    # Lists of tensors, for example of `cat`, take more than one read each.
    if name in ("cat", "stack", "where", "maximum", "minimum"):
        parts = [source.range for source in call.sources()][name == "where" :]
        source = next((part.source for part in parts if part.source is not None), None)
        return Range(min(part.low for part in parts), max(part.high for part in parts), source)
    if name.startswith("dropout"):
        rate = float(seen.given("p", 1, 0.5))
        return a * Range(0.0, 1 / (1 - rate) if rate < 1 else 1.0)
    if call.name in _KEEPING:
        return a
    if name == "normalize" or (name == "div" and _is_normalized(call)):
        return Range(-1.0, 1.0, call, length=1.0)
    if name == "div" and a.low >= 0 and _is_share(seen):
        return Range(0.0, 1.0, call)
    if call.name in PRODUCTS or name == "sum":
        return _cosines(seen)
    axis = seen.given("dim", 1) if name in ("softmax", "log_softmax") else None
    if isinstance(axis, int) and seen.made[0].dim() and seen.made[0].shape[axis] == 1:
        return Range(float(name == "softmax"), float(name == "softmax"), call)
    if name in _FIXED:
        return Range(*_FIXED[name], call)
    if name in ("clamp", "hardtanh", "clamp_min", "clamp_max"):
        return _clamped(seen, a)
    if name not in _OF_RANGES or seen.kwargs.get("alpha", 1) != 1:
        return _ANY
    made = _OF_RANGES[name](a, b)
    return replace(made, source=made.source or call) if name in ("exp", "pow") else made


def _operand(value: Any, reads: Any) -> Range:
    """Return the range of an argument: a number, a constant tensor, or the result of a recorded call."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Range(float(value), float(value))
    if not isinstance(value, Tensor):
        return _ANY
    source: TensorCall = next(reads)[0]
    is_constant = value.numel() == 1 if source.kind == "unknown" else not source.is_signal
    is_data = source.kind in ("inputs", "targets") or source.is_trained or value.requires_grad or value.is_complex()
    if source.range.is_bounded or not is_constant or is_data or not 0 < value.numel() <= _SMALL:
        return source.range
    return Range(float(value.min()), float(value.max()))


def _cosines(seen: Seen) -> Range:
    """Return the range of products of vectors of bounded norm, as a product of matrices or a sum of products."""
    call, reads = seen.call, seen.call.reads
    if call.name == "sum":
        is_sum = bool(reads) and reads[0][0].plain == "mul" and isinstance(seen.given("dim", 1), int)
        reads = reads[0][0].reads if is_sum else ()
    lengths = [source.range.length for source, _ in reads]
    if len(lengths) != 2 or not all(map(isfinite, lengths)):
        return _ANY
    if call.name not in ("einsum", "sum"):
        # The axes of the norms must be those of the product.
        axes = (-1, -1 if call.name == "linear" else -2)
        norms = (float(read.detach().norm(dim=axis).max()) for read, axis in zip(seen.args, axes, strict=False))
        if any(norm > _ONE * length for norm, length in zip(norms, lengths, strict=True)):
            return _ANY
    limit = lengths[0] * lengths[1]
    return Range(-limit, limit, call) if float(seen.made[0].detach().abs().max()) <= _ONE * limit else _ANY


def _clamped(seen: Seen, a: Range) -> Range:
    names = ("min_val", "max_val") if seen.call.name == "hardtanh" else ("min", "max")
    default = (-1.0, 1.0) if seen.call.name == "hardtanh" else (-inf, inf)
    low, high = (seen.given(name, at, limit) for at, (name, limit) in enumerate(zip(names, default, strict=True), 1))
    if seen.call.plain == "clamp_max":
        low, high = -inf, seen.given("max", 1)
    low, high = -inf if low is None else low, inf if high is None else high
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return _ANY
    return Range(min(max(a.low, low), high), max(min(a.high, high), low), seen.call)


def _is_normalized(call: TensorCall) -> bool:
    """Whether a division is that of vectors by their own norms, possibly with a lower limit on these."""
    if len(call.reads) < 2:
        return False
    (divided, _), (by, shape) = call.reads[:2]
    while by.reads and (by.plain in ("clamp", "clamp_min", "add") or by.name in MOVES):
        by = by.reads[0][0]
    return by.name in _NORMS and bool(by.reads) and by.reads[0][0] is divided and 1 in shape


def _is_share(seen: Seen) -> bool:
    """Whether a division is that of values by their own sums, judged by its results, which add up to one."""
    made, by = seen.made[0].detach(), seen.call.reads[-1]
    axes = [axis for axis, (size, other) in enumerate(zip(made.shape, by[1], strict=False)) if size != other]
    return by[0].name == "sum" and bool(axes) and bool(((made.double().sum(axes) - 1).abs() < 1e-4).all())
