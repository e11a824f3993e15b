"""Norms and activations recognised by what a module computes, for those that do not subclass torch's."""

from __future__ import annotations

from collections.abc import Sequence

from normless.residual.blocks import Kind
from normless.residual.graph import Dataflow, Fixed, Operand, Operation
from normless.residual.operations import ACTIVATION, ELEMENTWISE, LAYOUT, NORM, REDUCTION, ROOT

_NORM_PARTS = ELEMENTWISE | REDUCTION | NORM | ROOT | {"expand", "split", "chunk", "slice"}
_NONLINEAR = ACTIVATION | {"pow", "square", "sqrt", "exp", "erf", "abs", "where", "maximum"}


def computed_kind(operations: Sequence[Operation]) -> Kind | None:
    """What a module is that runs exactly these operations: a norm, an activation, a layer scale, or none.

    A norm divides activations by a root of their own statistics, or of stored ones (frozen batch norm). An
    activation is elementwise and not linear; a vector of slopes may be learned. A layer scale multiplies by a
    parameter and may add one.
    """
    names = {operation.name for operation in operations}
    learned = [operation for operation in operations if operation.parameters]
    if learned and names - LAYOUT <= {"mul", "add", "addcmul"} and all(len(one.parents) == 1 for one in operations):
        return "scale" if any(one.name != "add" for one in learned) else None
    if names <= _NORM_PARTS and (names & NORM or _normalizes(operations) or _is_frozen(operations)):
        return "norm"
    if names <= ELEMENTWISE and names & _NONLINEAR and names - LAYOUT:
        return "activation"
    return None


def _normalizes(operations: Sequence[Operation]) -> bool:
    """Whether statistics are formed, a root taken, and a product or quotient formed with it."""
    names = {operation.name for operation in operations}
    roots = names & ROOT
    forms_statistics = bool(names & REDUCTION) or bool(roots - {"sqrt", "rsqrt", "pow"})
    return forms_statistics and bool(roots) and bool(names & {"mul", "div", "addcmul"})


def _is_frozen(operations: Sequence[Operation]) -> bool:
    scales = [operation for operation in operations if operation.name in {"mul", "div", "addcmul"}]
    return any(fixed.rooted and fixed.buffers for operation in scales for fixed in operation.fixed)


def gamma_of(operations: Sequence[Operation]) -> str | None:
    """The vector by which a norm's operations scale its channels, by its qualified name; None without one."""
    for operation in reversed(operations):
        if operation.name in NORM or operation.name in {"mul", "addcmul"}:
            # addcmul(β, γ, x) adds its first argument; a norm's own operation takes γ before β.
            arguments = operation.arguments[1:] if operation.name == "addcmul" else operation.arguments
            for argument in arguments:
                if isinstance(argument, Fixed) and argument.parameters:
                    name = argument.parameters[0]
                    # A norm with a bias and no weight.
                    return None if operation.name in NORM and name.endswith(("bias", "beta")) else name
    return None


def inline_norm(flow: Dataflow, index: int) -> list[int]:
    """The operations of a norm in forward code, γ · x / root(statistics of x), by its product with γ; or none."""
    operation = flow[index]
    if operation.name != "mul" or len(operation.parents) != 1 or not operation.parameters:
        return []
    (quotient,) = operation.parents
    while flow[quotient].name in LAYOUT:
        (quotient,) = flow[quotient].parents
    if flow[quotient].name not in {"mul", "div"} or len(flow[quotient].parents) != 2:
        return []
    first, second = (argument.index for argument in flow[quotient].arguments[:2] if isinstance(argument, Operand))
    for value, divisor in ((first, second), (second, first)):
        chain = _statistics(flow, divisor, value)
        if chain:
            return [*sorted(chain), quotient, index]
    return []


def _statistics(flow: Dataflow, end: int, value: int) -> set[int]:
    """The operations from `value`, or what it was made of, to a root of its statistics at `end`."""
    chain: list[int] = []
    while len(chain) < 10:
        chain.append(end)
        parents = flow[end].parents
        if len(parents) != 1:
            return set()
        if flow.depends(value, parents[0]):
            names = {flow[index].name for index in chain}
            rooted = names & ROOT
            return set(chain) if rooted and (names & REDUCTION or rooted - {"sqrt", "rsqrt", "pow"}) else set()
        end = parents[0]
    return set()
