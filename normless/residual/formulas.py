"""Norms that forward code writes out, γ · (x − mean) / root(statistics of x) + β, by their operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isclose, isnan, nan, prod

from normless.lifting import Call
from normless.residual.blocks import Term
from normless.residual.graph import Dataflow, Fixed, Operand, Operation
from normless.residual.operations import ELEMENTWISE, LAYOUT, LENGTHS, NORM, REDUCTION, ROOT

NORM_PARTS = ELEMENTWISE | REDUCTION | NORM | ROOT | {"expand", "expand_as", "split", "chunk", "slice"}
_SIZES: dict[str, Callable[[float, float], float]] = {
    "sqrt": lambda size, _: size**0.5,
    "rsqrt": lambda size, _: size**-0.5,
    "reciprocal": lambda size, _: 1 / size,
    "pow": lambda size, number: size**number,
    "mul": lambda size, number: size * number,
    "div": lambda size, number: size / number,
}


@dataclass
class Formula:
    """The operations of x / root(statistics of x); `passed` are those of x itself, with what each reads of it.

    `quotient` multiplies an x of second moment 1 by `factor`: 1, or 1/√n for x / |x| of n elements. `gain` is γ's
    name, None without one. `is_norm` is False for x / |x| alone, a direction, of which a cosine is made, for data
    that no weight has read, and where the statistics are read elsewhere too, as to undo the division.
    """

    operations: list[int]
    passed: dict[int, int]
    quotient: int
    factor: float
    gain: str | None = None
    is_norm: bool = True


def written_norm(flow: Dataflow, quotient: int) -> Formula | None:
    """The formula whose division by a root of statistics an operation is, or None."""
    operation = flow[quotient]
    terms = [one for one in operation.arguments[:2] if isinstance(one, (Operand, Fixed))]
    if operation.name not in {"mul", "div"} or len(terms) != 2:
        return None
    for value, divisor in (terms, terms[::-1]) if operation.name == "mul" else (terms,):
        if not isinstance(value, Operand):
            continue
        x, passed, inside = _normalized(flow, value.index, divisor)
        chain, size = list[int](), float(isinstance(divisor, Fixed) and divisor.rooted and bool(divisor.buffers))
        if isinstance(divisor, Operand):
            chain, size = _statistics(flow, divisor.index, x, passed)
            size *= forms_root({flow[one].name for one in chain})
        if size:
            factor = size if operation.name == "mul" else 1 / size
            formula = Formula([*inside, *chain], {**passed, quotient: value.index}, quotient, factor)
            has_scale = isclose(_continue(flow, formula), 1, rel_tol=1e-3)
            is_closed = flow.is_closed(formula.operations, formula.operations[-1])
            has_weights = flow.reads_parameters(x)
            is_layer = has_scale and is_closed and has_weights
            formula.is_norm = not isnan(size) and (formula.gain is not None or is_layer)
            return formula
    return None


def terms_of(flow: Dataflow, formulas: Mapping[int, Formula]) -> dict[int, tuple[Term, ...]]:
    """What removing each written norm takes out of forward code; none of a norm at whose place more than that runs.

    One place may be of several norms, as in a function that a loop or `map` calls for each.
    """
    terms = {index: _terms(flow, formula) for index, formula in formulas.items()}
    norm_of = {part: index for index, formula in formulas.items() for part in formula.operations}
    whole: dict[int, tuple[Term, ...]] = {}
    for index, own in terms.items():
        parts = ((call, at) for call in own for turn in call.turns for at in flow.parts.get(turn, ()))
        others = ((call, norm_of.get(at)) for call, at in parts if norm_of.get(at) != index)
        if all(other is not None and terms[other].get(call) == own[call] for call, other in others):
            whole[index] = tuple(own.values())
    return whole


def _terms(flow: Dataflow, formula: Formula) -> dict[Call, Term]:
    """What removing a norm takes out, by the first call at its place in one run; nothing if one is unknown."""
    terms: dict[Call, Term] = {}
    for at, read in formula.passed.items():
        operation, call = flow[at], flow[at].made_by
        if operation.name not in LAYOUT:
            if call is None or call.place is None or call.obstacle:
                return {}
            factor = formula.factor if at == formula.quotient else 1.0
            known = terms.get(call.turns[0], Term(call.place, operation.arguments.index(Operand(read))))
            terms[call.turns[0]] = replace(known, factor=known.factor * factor)
    return terms


def forms_root(names: set[str]) -> bool:
    """Whether operations of these names form statistics and take a root of them."""
    roots = names & ROOT
    return bool(roots) and bool(names & REDUCTION or roots - {"sqrt", "rsqrt", "pow"})


def _normalized(flow: Dataflow, value: int, divisor: Operand | Fixed) -> tuple[int, dict[int, int], list[int]]:
    """The x that is divided by a root of its statistics, as by `_centred`; γ may multiply x before the division."""
    x, passed, inside = _centred(flow, value)
    gained: dict[int, int] = {}
    at = value
    while not passed and (flow[at].name in LAYOUT or _gains(flow[at])):
        (gained[at], *_) = flow[at].parents
        at = gained[at]
    if any(_gains(flow[one]) for one in gained) and isinstance(divisor, Operand):
        chain, _ = _statistics(flow, divisor.index, at, {})
        if chain and flow[min(chain)].parents[0] == at:
            return at, gained, []
    return x, passed, inside


def _centred(flow: Dataflow, value: int) -> tuple[int, dict[int, int], list[int]]:
    """The x of x − mean, the operations that it passes with what they read of it, and those of the mean."""
    passed: dict[int, int] = {}
    at = value
    while flow[at].name in LAYOUT or _gains(flow[at]):
        (passed[at], *_) = flow[at].parents
        at = passed[at]
    if flow[at].name == "sub" and isinstance(flow[at].arguments[0], Operand):
        x, mean = flow[at].arguments[0].index, flow[at].arguments[1]
        if isinstance(mean, Fixed) and mean.buffers:
            return x, {**passed, at: x}, []
        inside = _statistics(flow, mean.index, x, {})[0] if isinstance(mean, Operand) else []
        if REDUCTION.intersection(flow[one].name for one in inside):
            return x, {**passed, at: x}, inside
    return value, {}, []


def _statistics(flow: Dataflow, end: int, x: int, passed: dict[int, int]) -> tuple[list[int], float]:
    """The operations from x, or what it is made of, to a statistic at `end`, and its value if E[x²] = 1; or none."""
    chain, at = list[int](), end
    while at not in passed and not flow.depends(x, at):
        operation, inside = flow[at], list[int]()
        # Of expand_as(statistics, x) the second argument gives the shape alone.
        if len(operation.parents) > 1 and operation.name != "expand_as":
            _, centred, inside = _centred(flow, at) if operation.name == "sub" else (at, {}, inside)
            if not centred:
                return [], 0.0
        if len(chain) > 15 or not operation.parents or operation.name not in NORM_PARTS:
            return [], 0.0
        chain += [at, *inside]
        at = operation.parents[0]
    size = 1.0
    for operation in map(flow.__getitem__, sorted(set(chain))):
        numbers = [one for one in operation.arguments[1:2] if isinstance(one, (int, float))]
        elements = prod(flow[operation.parents[0]].shape or ()) / max(prod(operation.shape or ()), 1)
        if operation.name in _SIZES:
            size = _SIZES[operation.name](size, *(numbers or [1.0]))
        elif operation.name == "sum" or operation.name in LENGTHS:
            size *= elements if operation.name == "sum" else elements**0.5
            # Shares of a sum of absolute values are weights, as those of a softmax.
            size *= nan if operation.name != "sum" and operation.arguments[1:2] not in ((), (2,)) else 1.0
    return chain, size


def _gains(operation: Operation) -> tuple[str, ...]:
    """The parameters that an operation multiplies one activation by."""
    return operation.factors if operation.name in {"mul", "addcmul"} and len(operation.parents) == 1 else ()


def _is_shared_out(flow: Dataflow, at: int) -> bool:
    """Whether forward code makes something else of what an operation multiplies by, as c of (1 − c)·x + c·f(x)."""
    own, operation = set(flow[at].fixed), flow[at]
    beside = (one for one in flow.operations if (one.module, one.call) == (operation.module, operation.call))
    others = {fixed for one in beside for fixed in one.fixed} - own
    return any({*fixed.parameters}.intersection(operation.factors) for fixed in others)


def _continue(flow: Dataflow, formula: Formula) -> float:
    """Add to a formula what follows its quotient, γ, constant factors and β; returns the factors' product."""
    gains = [name for one in formula.passed for name in _gains(flow[one])]
    at, ahead, total = formula.quotient, list[int](), formula.factor
    while len(flow.consumers[at]) == 1 and at not in flow.outputs:
        before, (at,) = at, flow.consumers[at]
        operation = flow[at]
        gain = () if gains or _is_shared_out(flow, at) else _gains(operation)
        if gain or (operation.name == "add" and operation.added and len(operation.parents) == 1):
            gains += gain
            formula.passed[at] = before
            formula.operations += [*ahead, at]
            ahead = []
        elif operation.is_factor:
            total *= operation.numbers[0] if operation.name == "mul" else 1 / operation.numbers[0]
            ahead.append(at)
        elif operation.name in LAYOUT:
            ahead.append(at)
        else:
            break
        if operation.name in {"add", "addcmul"}:
            break
    formula.gain = next(iter(gains), None)
    formula.operations = sorted({*formula.operations, *formula.passed})
    return total
