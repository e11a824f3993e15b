"""Find the residual sums among the additions of a dataflow, with their forks, skip paths and branches.

A residual sum adds a skip path and one or more branches that all start at one activation, the fork. The skip path
is the fork itself or at most one linear layer on it. A branch has weights, or a norm or pooling. Other sums are
ignored: sums of activations without a common origin (position embeddings, masks), attention logits and their bias,
parallel linear layers (which are one layer), and merges of several streams that are also read elsewhere. Some layers
only compute a factor for a branch: squeeze-excite, the query and key of an attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from normless.residual import _operations as ops
from normless.residual._blocks import LayerKind
from normless.residual._graph import Operand, Operation
from normless.residual._layers import LayerRun, Layers
from normless.residual._main_path import gates, main_path, spans_streams

_SKIP_JOINS = {"mul", "cat"}


@dataclass(frozen=True)
class Sum:
    """A residual sum, by the indices of operations.

    Attributes:
        at: the addition.
        fork: the fork.
        skip: the last operation of the skip path.
        branches: the last operation of each branch.
        interpolates: whether the sum is x + c·(f(x) − x), which is (1 − c)·x for f(x) = 0.
    """

    at: int
    fork: int
    skip: int
    branches: tuple[int, ...]
    interpolates: bool = False


class SumFinder:
    """Find the residual sums of a dataflow.

    Attributes:
        sums: the residual sums by the operation that adds.
        parallel: the additions that are part of one linear layer.
        merges: the additions of paths from one fork that all have an activation after a weight layer, so that none of
            them is a skip path.
    """

    def __init__(self, layers: Layers) -> None:
        self.flow = layers.flow
        self.layers = layers
        self.sums: dict[int, Sum] = {}
        self.parallel: set[int] = set()
        self.merges: set[int] = set()
        for index, operation in enumerate(self.flow.operations):
            terms = self._terms(operation)
            if len(terms) >= 2 and index not in self.layers.owner:
                self._judge(index, terms)

    def _terms(self, operation: Operation) -> list[int]:
        """Return the summands of an operation: those of an addition, or the members of a stack that it sums over."""
        arguments = operation.arguments
        if operation.name in ops.ADDITION:
            terms = operation.operands[:: -1 if operation.name == "rsub" else 1]
        elif operation.name in {"sum", "mean"} and isinstance(arguments[0], Operand):
            stack = self.flow[arguments[0].index]
            if stack.name != "stack" or not _reduces_stack(operation, stack):
                return []
            terms = [argument.index for argument in stack.arguments[0] if isinstance(argument, Operand)]
        else:
            return []
        shapes = {self.flow[term].shape for term in terms}
        return terms if len(shapes) == 1 and operation.floating else []

    def _judge(self, at: int, terms: list[int]) -> None:
        parts = self._parts(terms, at)
        joined = set(terms) - set(parts)
        # (x + f(x)) + (x + g(x)) stays a sum of two.
        whole = self._residual(at, parts) if joined and len({*parts}) == len(parts) else None
        if at in self.parallel:
            # The whole sum is one layer, including the sums in it.
            self.parallel |= joined
            self.sums = {index: total for index, total in self.sums.items() if index not in joined}
            return
        if whole is not None and all(self._starts_at(whole.fork, term) for term in joined):
            for term in joined:
                self.sums.pop(term, None)
        else:
            whole = self._residual(at, terms)
        if whole is not None:
            self.sums[at] = whole

    def _parts(self, terms: list[int], at: int) -> list[int]:
        """Expand terms that are sums read here alone into their own terms, in the order of the additions."""
        parts = []
        for term in terms:
            whole = term in self.layers.owner or term in self.parallel or self.flow.consumers[term] != [at]
            inner = [] if whole else self._terms(self.flow[term])
            parts.append(self._parts(inner, term) if len(inner) > 1 else [term])
        return [part for several in sorted(parts, key=len, reverse=True) for part in several]

    def _starts_at(self, fork: int, term: int) -> bool:
        """Whether the parts of a term are branches from the fork that share no weight layer, at most a norm."""
        inner = self.sums.get(term)
        joined = term if self.flow[term].name in ops.ADDITION else self.flow[term].parents[0]
        start = self.flow.dominators[joined] if inner is None else inner.fork
        if start is None or not self.flow.depends(start, fork):
            return False
        if inner is not None and start != fork and inner.skip == start:
            return False
        return not self.layers.has_weight(self.flow.between(fork, start))

    def _residual(self, at: int, terms: list[int]) -> Sum | None:
        """Return the residual sum of these terms, or None if they do not form one."""
        candidates = [(skip, fork) for skip in terms if (fork := self.fork_of(skip, terms)) is not None]
        if self.flow[at].name in {"sub", "rsub"}:
            # x - f(x) is residual; f(x) - x is only a difference.
            candidates = [(skip, fork) for skip, fork in candidates if skip == terms[0]]
        elif not candidates or len(terms) > 2:
            # With several terms, a branch may be a single chain while the skip path joins several activations.
            candidates += self._joined(at, terms)
        if not candidates:
            return None
        paths = {pair: self.flow.between(pair[1], pair[0]) for pair in candidates}
        skip, fork = min(
            candidates, key=lambda pair: (self.chain(paths[pair]), self.layers.taps(paths[pair]), len(paths[pair]))
        )
        branches = list(terms)
        branches.remove(skip)
        interpolates = self._interpolates(at, skip, branches)
        before = self.flow.dominators[at]
        if interpolates and before is not None and not self.layers.has_weight(self.flow.between(fork, at)):
            # The branch reads the skip path for the difference, and the activation before it for the rest.
            fork = before
        candidate = Sum(at, fork, skip, tuple(branches), interpolates)
        return candidate if self._is_residual(candidate) else None

    def fork_of(self, skip: int, terms: list[int]) -> int | None:
        """Return the last operation on the single chain up to `skip` from which all other terms descend."""
        others = list(terms)
        others.remove(skip)
        at = skip
        while at not in others:
            if all(self.flow.depends(other, at) for other in others):
                return self._unchanged(at, others) if self.flow[at].floating else None
            parents = self.layers.inputs(at)
            if len(parents) != 1:
                return None
            (at,) = parents
        return None

    def _unchanged(self, fork: int, others: list[int]) -> int:
        """Replace a fork that is a view by the viewed activation if the other terms also read other views of it."""
        at = fork
        while self.flow[at].leaves_unchanged:
            before, at = at, self.flow[at].parents[0]
            readers = set(self.flow.consumers[at]) - {before}
            if any(self.flow.depends(other, reader) for other in others for reader in readers):
                fork = at
        return fork

    def _joined(self, at: int, terms: list[int]) -> list[tuple[int, int]]:
        """Find a fork for a gated skip path, as in x · (1 - g(x)) + f(x) · g(x), or one that joins activations."""
        fork = self.flow.dominators[at]
        if fork is None or not self.flow[fork].floating or not self.flow.is_closed(self.flow.between(fork, at), at):
            return []
        paths = {term: self.flow.between(fork, term) for term in terms}
        if not any(self.layers.has_weight(main_path(self.layers, path, end)) for end, path in paths.items()):
            # A sum of gated copies, x · g(x) + x · h(x), is a gate.
            return []

        def skips(path: list[int]) -> bool:
            several = (at for at in path if len(self.layers.inputs(at)) > 1 and not self._weighs(at))
            joins = {self.flow[at].name for at in several}
            return joins <= _SKIP_JOINS and self.sums.keys().isdisjoint(path)

        # Operations that only compute a factor, as of a stream, are not on a main path.
        mains = {term: sorted(main_path(self.layers, path, term)) for term, path in paths.items()}
        return [(term, fork) for term, path in mains.items() if skips(path)]

    def _weighs(self, at: int) -> bool:
        """Whether an operation multiplies a value by factors of streams, or by a gate computed from the value."""
        operation = self.flow[at]
        is_product = operation.name in ops.PRODUCT | {"mul"} and len(operation.parents) == 2
        pairs = (operation.parents, operation.parents[::-1]) if is_product else ()
        return any(
            gates(self.layers, value, factor) or spans_streams(self.flow, operation, value, factor)
            for factor, value in pairs
        )

    def _interpolates(self, at: int, skip: int, branches: list[int]) -> bool:
        """Whether a sum is torch.lerp(x, f(x), c), or x + c·(f(x) − x) or (1 − c)·x + c·f(x) written out."""

        def passes(index: int) -> bool:
            step, kind = self.flow[index], self.layers.kind(index)
            return len(step.parents) == 1 and (kind == "scale" or step.leaves_unchanged or step.is_factor)

        def factors(index: int) -> set[str]:
            end = self.flow.source(index, passes)
            return {
                name
                for step in range(end + 1, index + 1)
                if self.flow.depends(index, step)
                for name in self.flow[step].factors
            }

        ends = (self.flow[self.flow.source(branch, passes)] for branch in branches)
        is_step = any(end.name == "sub" and skip in end.operands for end in ends)
        return is_step or self.flow[at].name == "lerp" or any(factors(skip) & factors(branch) for branch in branches)

    def _is_residual(self, candidate: Sum) -> bool:
        skip = self.flow.between(candidate.fork, candidate.skip)
        main = sorted(main_path(self.layers, skip, candidate.skip))
        paths = [self.flow.between(candidate.fork, branch) for branch in candidate.branches]
        if self._is_parallel(candidate, skip, paths):
            self.parallel.add(candidate.at)
            return False
        if self._feeds_softmax(candidate.at):
            return False
        if not any(map(self.layers.has_weight, paths)):
            plain = all(self.flow[index].leaves_unchanged or self.layers.kind(index) == "scale" for index in skip)
            # Without weights a branch is a norm or a pooling, not an elementwise function.
            return plain and all(any(map(self._is_norm_or_pooling, path)) for path in paths)
        return self.chain(main) == 0 or self._is_projection(candidate, main, paths)

    def _is_projection(self, candidate: Sum, skip: list[int], paths: list[list[int]]) -> bool:
        """Whether the skip path only adapts shapes: it is linear after its first weight layer, or read here alone."""
        kinds = self._kinds(skip)
        if self._bends(skip) and not all(self.flow.is_closed(path, candidate.at) for path in (skip, *paths)):
            return False
        gates = any(
            self.flow[index].name == "mul" and len(self.flow[index].parents) > 1 for path in paths for index in path
        )
        if all(map(self._bends, (skip, *paths))) and not gates and self.chain(skip) >= min(map(self.chain, paths)):
            self.merges.add(candidate.at)
        for path in paths:
            # If a branch contains blocks and is read elsewhere, or is not longer than the skip path, this is a merge.
            streams = any(index in self.sums for index in path) and not self.flow.is_closed(path, candidate.at)
            nonlinear = not {"norm", "activation"}.isdisjoint(self._kinds(path))
            more = not nonlinear or "activation" in kinds
            if streams or self.chain(path) < self.chain(skip) + more:
                return False
        return True

    def _bends(self, path: list[int]) -> bool:
        """Whether an activation follows the first weight layer of a path."""
        kinds = self._kinds(path)
        return "weight" in kinds and "activation" in kinds[kinds.index("weight") :]

    def _kinds(self, path: list[int]) -> list[LayerKind | None]:
        """Return the layer kind of each operation on a path; a recurrent layer ends in an activation."""
        kinds = [self.layers.kind(index) for index in path]
        return [*kinds, "activation"] if any(self.flow[index].name in ops.RECURRENT for index in path) else kinds

    def _is_norm_or_pooling(self, index: int) -> bool:
        pools = self.flow[index].name in ops.POOLING and index not in self.layers.owner
        return pools or self.layers.kind(index) == "norm"

    def _is_parallel(self, candidate: Sum, skip: list[int], paths: list[list[int]]) -> bool:
        """Whether all terms are single linear layers, so that their sum is one layer too."""
        every = [skip, *paths]
        if self.chain(skip) and all(self.layers.has_weight(path) and self._is_linear(path, set()) for path in every):
            return True
        if not all(self.chain(path) <= 1 and self._is_linear(path, ops.BATCH_NORM | {"getitem"}) for path in every):
            return False
        bare = len(paths) == 1 and self.layers.has_weight(skip) and not self._is_normalized(skip)
        if bare and self._is_normalized(paths[0]) and self.layers.taps(skip) <= self.layers.taps(paths[0]):
            # Parts of one kernel are all normalized or all not; a shortcut beside a normalized branch is a skip path.
            return False
        weights = sum(map(self.layers.has_weight, every))
        convolutions = sum(self.flow[index].name in ops.CONVOLUTION for path in every for index in path)
        normalized = any(map(self._is_normalized, every))
        if all(self.flow[index].leaves_unchanged for index in skip):
            # Parts of one kernel; without norms x + W x is the simplest residual block.
            return convolutions >= 2 and normalized
        return weights >= 2 or (weights >= 1 and normalized)

    def _is_normalized(self, path: list[int]) -> bool:
        return any(self.flow[index].name in ops.BATCH_NORM for index in path)

    def _is_linear(self, path: list[int], names: set[str]) -> bool:
        """Whether a path consists of weight layers, sums of linear layers and operations of these names."""
        return all(
            self.layers.kind(index) == "weight"
            or self.flow[index].name in names
            or self.flow[index].leaves_unchanged
            or index in self.parallel
            for index in path
        )

    def chain(self, path: list[int], counted: set[LayerRun] | None = None) -> int:
        """Count the weight layers in series on a path, with each level of a recurrent layer.

        If `counted` is given, only its runs count, a recurrent layer once.
        """
        depth: dict[int, int] = {}
        for index in path:
            parents = [parent for parent in self.flow[index].parents if parent in depth]
            run = self.layers.owner.get(index)
            counts = run is not None and run.layer.kind == "weight" and (counted is None or run in counted)
            continues = any(self.layers.owner.get(parent) is run for parent in parents)
            levels = self.flow[index].stacked if counted is None else 1
            depth[index] = max((depth[parent] for parent in parents), default=0) + levels * (counts and not continues)
        return max(depth.values(), default=0)

    def _feeds_softmax(self, at: int) -> bool:
        """Whether a sum only computes attention logits: every path from it reaches a softmax before other layers."""
        pending, seen, reached = [at], {at}, False
        while pending:
            index = pending.pop()
            for reader in self.flow.consumers[index]:
                operation = self.flow[reader]
                if operation.name in ops.SOFTMAX or (
                    operation.name in ops.ATTENTION and index not in operation.parents[:3]
                ):
                    reached = True
                elif operation.name not in ops.BEFORE_SOFTMAX or len(seen) > 40:
                    return False
                elif reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
        return reached


def _reduces_stack(total: Operation, stack: Operation) -> bool:
    """Whether a sum runs over the dimension that a stack made."""
    if total.shape is None or stack.shape is None:
        return False
    stacked = stack.arguments[1] if len(stack.arguments) > 1 else 0
    over = total.arguments[1] if len(total.arguments) > 1 else ()
    dimensions = over if isinstance(over, tuple) else (over,)
    size = len(stack.shape)
    return [int(dimension) % size for dimension in dimensions if isinstance(dimension, int)] == [int(stacked) % size]
