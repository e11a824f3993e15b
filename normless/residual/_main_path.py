"""The operations of a branch on its main path, without those that only compute a factor or an index for it."""

from __future__ import annotations

from math import prod

from normless.residual import _operations as ops
from normless.residual._graph import Dataflow, Operand, Operation
from normless.residual._layers import Layers


def main_path(layers: Layers, path: list[int], end: int) -> set[int]:
    """Return the operations of a branch with results that reach its end other than as a factor."""
    inside = set(path)
    main = {end} & inside
    for index in sorted(inside, reverse=True):
        if index in main:
            main |= inside.intersection(passed_on(layers, index))
    return main


def passed_on(layers: Layers, index: int) -> tuple[int, ...]:
    """Return the inputs of an operation that are not factors or indices: x of x · g(x), v of softmax(q kᵀ) v."""
    flow = layers.flow
    operation = flow[index]
    if operation.name in ops.ATTENTION:
        return tuple(argument.index for argument in operation.arguments if isinstance(argument, Operand))[2:3]
    if operation.name in ops.PRODUCT | {"mul"} and len(operation.parents) == 2:
        for factor, value in (operation.parents, operation.parents[::-1]):
            is_share = _routes(flow, value, factor) if operation.name == "mul" else _comes_from_softmax(flow, factor)
            if is_share or gates(layers, value, factor) or spans_streams(flow, operation, value, factor):
                return (value,)
    # Indices select, as those of the experts of a token.
    values = tuple(parent for parent in operation.parents if flow[parent].floating)
    return values if operation.floating and values else operation.parents


def gates(layers: Layers, value: int, factor: int) -> bool:
    """Whether weight layers compute a factor from the value that it multiplies, an activation rather than a mask."""
    flow = layers.flow
    value = flow.source(value, lambda at: flow[at].leaves_unchanged)
    before = (index for index in range(value + 1) if flow.depends(value, index))
    return layers.has_weight(flow.between(value, factor)) and layers.has_weight(before)


def spans_streams(flow: Dataflow, operation: Operation, value: int, factor: int) -> bool:
    """Whether a factor has no channels, but weights a value for each of several streams."""
    shape, of_value, of_factor = operation.shape, flow[value].shape, flow[factor].shape
    if not shape or not of_value or not of_factor or of_value[-1] != shape[-1] or of_factor[-1] == shape[-1]:
        return False
    if operation.name == "mul":
        return of_factor[-1] == 1 and prod(shape) > prod(of_value)
    return prod(shape) == prod(of_value) * of_factor[-1] == prod(of_factor) * of_value[-1]


def _routes(flow: Dataflow, value: int, factor: int) -> bool:
    """Whether a factor is the share of an expert for each token: one number, selected from those of a router."""
    of_value, of_factor = flow[value].shape, flow[factor].shape
    if not of_value or not of_factor or of_value[-1] == 1 or of_factor[-1] != 1:
        return False
    start = flow.source(factor, lambda at: flow[at].leaves_unchanged or flow[at].name in ops.AFTER_ROUTER)
    return start != factor and flow[start].name in ops.SOFTMAX | {"sigmoid"}


def _comes_from_softmax(flow: Dataflow, index: int) -> bool:
    def passes(at: int) -> bool:
        return len(flow[at].parents) == 1 and (flow[at].leaves_unchanged or flow[at].name in ops.AFTER_SOFTMAX)

    return flow[flow.source(index, passes)].name in ops.SOFTMAX
