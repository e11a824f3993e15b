"""Which layers of a branch only compute a factor for it: squeeze-excite, an attention's query and key."""

from __future__ import annotations

from normless.residual.graph import Dataflow, Operand
from normless.residual.layers import Layers
from normless.residual.operations import ATTENTION, SOFTMAX, leaves_unchanged

# "linear" mixes the heads of an attention (talking heads).
_AFTER_SOFTMAX = {"linear", "dropout", "native_dropout", "expand", "mul", "div", "getitem", "select", "slice"}


def main_path(flow: Dataflow, layers: Layers, path: list[int], end: int) -> set[int]:
    """The operations of a branch whose results reach its end other than as a factor.

    A product x · g(x) whose factor has weights passes on x alone, softmax(q kᵀ) v passes on v alone.
    """
    inside = set(path)
    main = {end} & inside
    pending = list(main)
    while pending:
        for parent in passed_on(flow, layers, pending.pop()):
            if parent in inside and parent not in main:
                main.add(parent)
                pending.append(parent)
    return main


def passed_on(flow: Dataflow, layers: Layers, index: int) -> tuple[int, ...]:
    """What an operation reads, without what only computes a factor for it."""
    operation = flow[index]
    if operation.name in ATTENTION:
        return tuple(argument.index for argument in operation.arguments if isinstance(argument, Operand))[2:3]
    if operation.name in {"matmul", "bmm", "einsum", "mul"} and len(operation.parents) == 2:
        weights, values = operation.parents
        if operation.name == "mul":
            for value, factor in ((weights, values), (values, weights)):
                if _gates(flow, layers, value, factor):
                    return (value,)
        elif _comes_from_softmax(flow, weights):
            return (values,)
        elif _comes_from_softmax(flow, values):
            return (weights,)
    return operation.parents


def _gates(flow: Dataflow, layers: Layers, value: int, factor: int) -> bool:
    """Whether a factor is computed by weights from the very value that it multiplies."""
    while leaves_unchanged(flow[value]):
        (value,) = flow[value].parents
    return flow.depends(factor, value) and any(
        layers.kind(index) == "weight" for index in flow.between(value, factor)
    )


def _comes_from_softmax(flow: Dataflow, index: int) -> bool:
    while flow[index].name not in SOFTMAX:
        operation = flow[index]
        if len(operation.parents) != 1 or not (leaves_unchanged(operation) or operation.name in _AFTER_SOFTMAX):
            return False
        (index,) = operation.parents
    return True
