"""Find the heads of a network, and the normalizations that define its outputs or attention logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from normless._internal.reach import reachable
from normless.residual import _operations as ops
from normless.residual._blocks import Head, LayerKind
from normless.residual._graph import Dataflow, Operation

# Returns the kind of layer to which an operation belongs.
KindAt = Callable[[int], LayerKind | None]
# The use of a product of two activations.
OutputUse = Literal["attention", "output", "weights"]

_SIMILARITY = ops.PRODUCT | {"mv", "dot"}
# Between attention weights and their product with values.
_OF_WEIGHTS = ops.LAYOUT | ops.AFTER_SOFTMAX - {"linear", "getitem"} | {"masked_fill", "where"}


def reason_to_keep(flow: Dataflow, kind_at: KindAt, operations: Sequence[int], has_vector: bool) -> str:
    """Say why a normalization is outside the trunk, or return an empty string if it is part of the trunk.

    A normalization of the trunk is read by a weight layer, which could absorb a change of its scale, or by another
    normalization. The scale of a normalization is not arbitrary if the network returns its result or computes a
    similarity from it.

    Args:
        flow: the dataflow.
        kind_at: returns the kind of layer to which an operation belongs.
        operations: the operations of the normalization.
        has_vector: whether it multiplies by a learned vector, γ, which absorbs a change of scale at an output.
    """
    if not _is_of_examples(flow, operations):
        return ""
    reach = _Reach(flow, kind_at, operations)
    uses = {use for product in reach.products for use in reach.uses_of(product)}
    if not has_vector and (reach.returned or (uses == {"output"} and not reach.absorbed)):
        return "it defines an output of the network, and no layer after it could absorb its scale"
    if reach.absorbed or not uses:
        return ""
    if "attention" in uses:
        return "an attention compares what it returns, as queries or keys"
    return "a similarity compares what it returns" if "output" in uses or not has_vector else ""


def heads_of(flow: Dataflow, kind_at: KindAt, layers: Iterable[tuple[str, Sequence[int], int]]) -> tuple[Head, ...]:
    """Find the heads among weight layers.

    Args:
        flow: the dataflow.
        kind_at: returns the kind of layer to which an operation belongs.
        layers: for each weight layer its path, the operations of a run, and the number of positions that it reads. A
            convolution over several positions returns an image rather than logits.
    """
    heads: dict[str, str] = {}
    for path, operations, window in layers:
        reach = _Reach(flow, kind_at, operations, through_norms=True)
        if reach.returned:
            image = f"it is a convolution over {window} positions, which returns an image" if window > 1 else ""
            heads[path] = heads.get(path) or image or _obstacle(flow, kind_at, operations, reach)
    return tuple(Head(path, obstacle) for path, obstacle in heads.items())


class _Reach:
    """Follow the result of a layer forward, up to weight layers, which absorb its scale, and normalizations.

    Attributes:
        seen: the operations that read the result, in execution order.
        returned: whether the network returns the result.
        absorbed: whether a weight layer or a normalization reads the result.
        products: the products that compare the result with another activation.
    """

    def __init__(
        self, flow: Dataflow, kind_at: KindAt, operations: Sequence[int], through_norms: bool = False
    ) -> None:
        self.flow, self.kind_at, self.through_norms = flow, kind_at, through_norms
        self.start, own = operations[-1], {*operations}
        self.returned, self.absorbed = self.start in flow.outputs, False
        self.products: list[int] = []
        pending, seen = [self.start], set[int]()
        while pending:
            at = pending.pop()
            for reader in set(flow.consumers[at]) - seen - own:
                seen.add(reader)
                if self._passes(at, reader):
                    pending.append(reader)
                    self.returned |= reader in flow.outputs
        self.seen = sorted(seen)

    def _passes(self, at: int, reader: int) -> bool:
        """Whether the result of an operation's reader has the scale of the operation's result."""
        kind = self.kind_at(reader)
        ends = kind in ("norm", "direction") and not self.through_norms
        if ends or (kind == "weight" and not is_scale_free(self.flow[reader])) or self._is_residual(at, reader):
            self.absorbed = True
            return False
        if self._compares(at, reader):
            self.products.append(reader)
            return self.through_norms
        return True

    def _is_residual(self, at: int, reader: int) -> bool:
        """Whether the reader adds the result to an output of weight layers that read it."""
        operation = self.flow[reader]
        others = [parent for parent in operation.parents if parent != at] if operation.name in {"add", "sub"} else []
        return any(
            self.flow.depends(other, self.start)
            and any(self.kind_at(inside) == "weight" for inside in self.flow.between(self.start, other))
            for other in others
        )

    def _compares(self, at: int, reader: int) -> bool:
        """Whether the reader multiplies the result with another computed activation and sums over features."""
        operation = self.flow[reader]
        if operation.name in ops.ATTENTION:
            return at in operation.parents[:2]
        others = [parent for parent in operation.parents if parent != at] or [at]
        is_product = operation.name in _SIMILARITY and not operation.parameters
        return is_product and not any(map(self._averages, others))

    def _averages(self, at: int) -> bool:
        """Whether an operand holds the weights of an average: attention weights, or a graph that is an input."""
        if not self.flow.reads_parameters(at):
            return True
        while self.flow[at].name in _OF_WEIGHTS and self.flow[at].parents:
            at = self.flow[at].parents[0]
        return self.flow[at].name in ops.SOFTMAX

    def uses_of(self, product: int) -> Iterator[OutputUse]:
        """Find the uses of a product: as attention weights, as an output, or as the input of weight layers."""
        if self.flow[product].name in ops.ATTENTION:
            yield "attention"
            return

        def ends(at: int) -> bool:
            return self.flow[at].name in ops.SOFTMAX or (at != product and self.kind_at(at) == "weight")

        for at in reachable([product], lambda at: () if ends(at) else self.flow.consumers[at]):
            if ends(at):
                yield "attention" if self.flow[at].name in ops.SOFTMAX else "weights"
            elif at in self.flow.outputs:
                yield "output"


def is_scale_free(operation: Operation) -> bool:
    """Whether the weight of an operation is divided by its own norm, without a gain to absorb a scale."""
    weights = [fixed for fixed in operation.fixed if not {*operation.added}.issuperset(fixed.parameters)]
    degrees = [degree for fixed in weights for _, degree in fixed.degrees]
    return bool(degrees) and all(degree == 0 for degree in degrees)


def _is_of_examples(flow: Dataflow, operations: Sequence[int]) -> bool:
    """Whether a normalization only takes statistics over the features of each example."""
    for operation in map(flow.__getitem__, operations):
        if operation.name in ops.BATCH_NORM | ops.GROUP_NORM or any(
            fixed.buffers and fixed.rooted for fixed in operation.fixed
        ):
            return False
        if operation.name in ops.REDUCTION | ops.LENGTHS and operation.parents:
            axes = len(flow[operation.parents[0]].shape or ())
            place = 2 if operation.name in ops.LENGTHS else 1
            given = operation.arguments[place] if len(operation.arguments) > place else None
            reduced = (given,) if isinstance(given, int) else given if isinstance(given, tuple) else range(axes)
            if axes > 1 and any(isinstance(axis, int) and axis % axes == 0 for axis in reduced):
                return False
    return True


def _obstacle(flow: Dataflow, kind_at: KindAt, operations: Sequence[int], reach: _Reach) -> str:
    """Say why a head is not a classifier that may start at zero, or return an empty string."""
    if any(degree == 0 for at in operations for fixed in flow[at].fixed for _, degree in fixed.degrees):
        return "its weight is divided by its own norm, which zeros leave undefined"
    inside = {*operations, *reach.seen}
    objections = (_objection(flow, kind_at, at, inside) for at in reach.seen)
    return next(filter(None, objections), "")


def _objection(flow: Dataflow, kind_at: KindAt, at: int, inside: set[int]) -> str:
    """Say why an operation that reads a head's result, through the operations `inside`, cannot read zeros."""
    operation = flow[at]
    own = [operand in inside for operand in operation.operands]
    name = operation.name
    if kind_at(at) in ("norm", "direction") or name in ops.NORM | ops.ROOT:
        return f"a normalization reads it ({name}), which divides by its length"
    if name in _SIMILARITY | ops.ATTENTION and len(operation.parents) > 1:
        return f"a product with another output reads it ({name}), which zeros would keep at zero"
    if name == "mul" and own.count(True) > 1:
        return "its outputs are multiplied with each other, and the gradient of that is zero at zero"
    if name == "div" and len(own) == 2 and (own[1] or flow.reads_parameters(operation.operands[1])):
        return "a ratio of outputs reads it"
    if kind_at(at) == "weight" or name in ops.READS_LOGITS or name in ("mul", "div"):
        return ""
    return f"{name} reads it, so that it does not return logits"
