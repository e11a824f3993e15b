"""Find norms that forward code writes out as γ · (x − mean) / root(statistics of x) + β."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, isnan, nan, prod

from normless.recording._calls import Call
from normless.residual._blocks import NormTerm
from normless.residual._graph import Dataflow, Fixed, Operand, Operation
from normless.residual._operations import LAYOUT, LENGTHS, NORM, NORM_PARTS, REDUCTION, ROOT

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
    """The operations of x / root(statistics of x).

    Attributes:
        operations: all operations of the formula.
        passed: the operations on x itself, with the operation that each reads.
        quotient: the division by the root.
        factor: the factor of the quotient for an x of second moment 1: 1, or 1/√n for x / |x| with n elements.
        gain: the name of γ, or None.
        is_norm: False for x / |x| alone, a direction as in a cosine; for data that no weight has read; and if the
            statistics are also read elsewhere, for example to undo the division.
    """

    operations: list[int]
    passed: dict[int, int]
    quotient: int
    factor: float
    gain: str | None = None
    is_norm: bool = True


def written_norm(flow: Dataflow, quotient: int) -> Formula | None:
    """Return the formula of a division by a root of statistics, or None for another operation."""
    operation = flow[quotient]
    terms = [argument for argument in operation.arguments[:2] if isinstance(argument, (Operand, Fixed))]
    if operation.name not in {"mul", "div"} or len(terms) != 2:
        return None
    for value, divisor in (terms, terms[::-1]) if operation.name == "mul" else (terms,):
        if not isinstance(value, Operand):
            continue
        x, passed, inside = _normalized(flow, value.index, divisor)
        chain, size = list[int](), float(isinstance(divisor, Fixed) and divisor.rooted and bool(divisor.buffers))
        if isinstance(divisor, Operand):
            chain, size = _statistics(flow, divisor.index, x, passed)
            size *= _forms_root({flow[index].name for index in chain})
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


def terms_of(flow: Dataflow, formulas: Mapping[int, Formula]) -> dict[int, tuple[NormTerm, ...]]:
    """Return the operations to remove from forward code with each norm; omit norms that share code with others.

    Several norms may have the same place, as in a function that a loop or `map` calls, if all are norms.
    """
    terms = {index: _terms(flow, formula) for index, formula in formulas.items()}
    norm_of = {part: index for index, formula in formulas.items() for part in formula.operations}
    whole: dict[int, tuple[NormTerm, ...]] = {}
    for index, own in terms.items():
        parts = ((call, at) for call in own for turn in call.turns for at in flow.parts.get(turn, ()))
        others = ((call, norm_of.get(at)) for call, at in parts if norm_of.get(at) != index)
        if all(neighbour is not None and terms[neighbour].get(call) == own[call] for call, neighbour in others):
            whole[index] = tuple(own.values())
    return whole


def _terms(flow: Dataflow, formula: Formula) -> dict[Call, NormTerm]:
    """Return the operations to remove with a norm, by the first call at their place in a run; none if unknown."""
    terms: dict[Call, NormTerm] = {}
    for at, read in formula.passed.items():
        operation, call = flow[at], flow[at].made_by
        if operation.name not in LAYOUT:
            if call is None or call.place is None or call.obstacle:
                return {}
            factor = formula.factor if at == formula.quotient else 1.0
            known = terms.get(call.turns[0], NormTerm(call.place, operation.arguments.index(Operand(read))))
            terms[call.turns[0]] = replace(known, factor=known.factor * factor)
    return terms


def normalizes(operations: Sequence[Operation]) -> bool:
    """Whether these are the operations of a norm and nothing else: an operator of torch, or a written formula.

    A formula divides by a root of statistics, or by that of a stored statistic (frozen batch norm).
    """
    names = {operation.name for operation in operations}
    scales = [operation for operation in operations if operation.name in {"mul", "div", "addcmul"}]
    is_frozen = any(fixed.rooted and fixed.buffers for operation in scales for fixed in operation.fixed)
    return names <= NORM_PARTS and bool(names & NORM or is_frozen or (scales and _forms_root(names)))


def _forms_root(names: set[str]) -> bool:
    """Whether operations of these names form statistics and take a root of them."""
    roots = names & ROOT
    return bool(roots) and bool(names & REDUCTION or roots - {"sqrt", "rsqrt", "pow"})


def _normalized(flow: Dataflow, value: int, divisor: Operand | Fixed) -> tuple[int, dict[int, int], list[int]]:
    """Return the x that is divided by a root of its statistics, as `_centred` does; γ may multiply x before."""
    x, passed, inside = _centred(flow, value)
    source, gained = _before_gains(flow, value)
    if not passed and any(_gains(flow[index]) for index in gained) and isinstance(divisor, Operand):
        chain, _ = _statistics(flow, divisor.index, source, {})
        if chain and flow[min(chain)].parents[0] == source:
            return source, gained, []
    return x, passed, inside


def _before_gains(flow: Dataflow, value: int) -> tuple[int, dict[int, int]]:
    """Return what gains and changes of layout turn into `value`, and these operations with the ones they read."""
    passed: dict[int, int] = {}
    at = value
    while flow[at].name in LAYOUT or _gains(flow[at]):
        (passed[at], *_) = flow[at].parents
        at = passed[at]
    return at, passed


def _centred(flow: Dataflow, value: int) -> tuple[int, dict[int, int], list[int]]:
    """Return the x of x − mean, the operations on x with the operations they read, and those of the mean."""
    at, passed = _before_gains(flow, value)
    if flow[at].name == "sub" and isinstance(flow[at].arguments[0], Operand):
        x, mean = flow[at].arguments[0].index, flow[at].arguments[1]
        if isinstance(mean, Fixed) and mean.buffers:
            return x, {**passed, at: x}, []
        inside = _statistics(flow, mean.index, x, {})[0] if isinstance(mean, Operand) else []
        if REDUCTION.intersection(flow[index].name for index in inside):
            return x, {**passed, at: x}, inside
    return value, {}, []


def _statistics(flow: Dataflow, end: int, x: int, passed: dict[int, int]) -> tuple[list[int], float]:
    """Return the operations from x or its ancestors to a statistic at `end` and its value if E[x²] = 1, or none."""
    chain, at = list[int](), end
    while at not in passed and not flow.depends(x, at):
        operation, inside = flow[at], list[int]()
        # The second argument of expand_as(statistics, x) only gives the shape.
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
        numbers = [argument for argument in operation.arguments[1:2] if isinstance(argument, (int, float))]
        elements = prod(flow[operation.parents[0]].shape or ()) / max(prod(operation.shape or ()), 1)
        if operation.name in _SIZES:
            size = _SIZES[operation.name](size, *(numbers or [1.0]))
        elif operation.name == "sum" or operation.name in LENGTHS:
            size *= elements if operation.name == "sum" else elements**0.5
            # Shares of a sum of absolute values are weights, like those of a softmax.
            size *= nan if operation.name != "sum" and operation.arguments[1:2] not in ((), (2,)) else 1.0
    return chain, size


def _gains(operation: Operation) -> tuple[str, ...]:
    """Return the parameters by which an operation multiplies an activation."""
    return operation.factors if operation.name in {"mul", "addcmul"} and len(operation.parents) == 1 else ()


def _is_shared_out(flow: Dataflow, at: int) -> bool:
    """Whether forward code also uses the factor of an operation otherwise, as c of (1 − c)·x + c·f(x)."""
    own, operation = set(flow[at].fixed), flow[at]
    beside = (flow[index] for index in flow.of_run[operation.runs[-1]])
    others = {fixed for neighbour in beside for fixed in neighbour.fixed} - own
    return any({*fixed.parameters}.intersection(operation.factors) for fixed in others)


def _continue(flow: Dataflow, formula: Formula) -> float:
    """Add the γ, constant factors and β after its quotient to a formula; return the product of the factors."""
    gains = [name for index in formula.passed for name in _gains(flow[index])]
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
