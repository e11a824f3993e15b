"""The residual map of any network, read from its `torch.export` dataflow, never from class names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from normless.nn import ResidualSum
from normless.residual.blocks import Layer, ResidualBlock, ResidualMap, Site
from normless.residual.export import exported
from normless.residual.gates import main_path
from normless.residual.graph import Dataflow, Operand
from normless.residual.layers import LayerCall, Layers, find_layers
from normless.residual.operations import leaves_unchanged
from normless.residual.outside_blocks import Outside, find_unresolved
from normless.residual.reader import read_dataflow
from normless.residual.sums import Sum, SumFinder


def traced_map(model: nn.Module, *inputs: Any, **kwargs: Any) -> ResidualMap:
    """Find the residual blocks of a network in its dataflow, also where it states its structure.

    Raises:
        UnresolvedStructureError: the network cannot be exported on these inputs.
    """
    return _Tracer(model, read_dataflow(exported(model, inputs, kwargs))).map()


@dataclass
class _Block:
    """A residual sum with the operations of its paths, and the blocks inside its branches."""

    sum: Sum
    skip: list[int]
    branches: list[list[int]]
    inner: list[_Block] = field(default_factory=list)

    def walk(self) -> Iterator[_Block]:
        """The block and those inside it, outer before inner."""
        yield self
        for block in self.inner:
            yield from block.walk()

    @property
    def branch(self) -> list[int]:
        """The operations of all branches, in execution order."""
        return sorted({index for path in self.branches for index in path})


class _Tracer:
    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self.model = model
        self.flow = flow
        self.layers: Layers = find_layers(model, flow)
        self.finder = SumFinder(flow, self.layers)
        self.additions: dict[tuple[str, int], list[int]] = defaultdict(list)
        for index, operation in enumerate(flow.operations):
            if operation.name == "add" and len(operation.parents) == 2:
                self.additions[operation.module, operation.call].append(index)

    def map(self) -> ResidualMap:
        blocks = [self._paths(one) for one in self.finder.find()]
        outer = _nested(blocks)
        names = self._names(outer)
        self._mark_gating(outer)
        mapped = [self._block(block, names) for block in outer]
        inside = {call for block in outer for call in self.layers.along(sorted({*block.branch, *block.skip}))}
        outside = Outside(self.flow, self.layers, mapped, [block.sum for block in outer])
        stem, trunk, head = outside.place(inside)
        return ResidualMap(
            blocks=tuple(outside.blocks),
            stem_layers=tuple(stem),
            trunk_layers=tuple(trunk),
            head_layers=tuple(head),
            unresolved=find_unresolved(self.model, self.flow, self.layers, self.finder),
            flow=self.flow,
        )

    def _paths(self, total: Sum) -> _Block:
        branches = [self.flow.between(total.fork, branch) for branch in total.branches]
        return _Block(
            total,
            skip=self.flow.between(total.fork, total.skip),
            branches=[sorted({*path, *self._side_inputs(path, total.fork)}) for path in branches],
        )

    def _side_inputs(self, path: list[int], fork: int) -> set[int]:
        """What a branch makes, by one weight layer, of activations that do not come from the fork.

        Such are the key and value of an attention to another sequence, and a branch's projection of a condition.
        """
        inside = {*path, fork}
        inputs: set[int] = set()
        pending = list(path)
        while pending:
            for parent in self.flow[pending.pop()].parents:
                if parent not in inside | inputs | self.finder.sums.keys():
                    inputs.add(parent)
                    if self.layers.kind(parent) != "weight":
                        pending.append(parent)
        # What another operation reads is not part of the branch, nor is what no weight layer has produced.
        while shared := {index for index in inputs if not inside | inputs >= set(self.flow.consumers[index])}:
            inputs -= shared
        weights = [index for index in inputs if self.layers.kind(index) == "weight"]
        return {index for index in inputs if any(self.flow.depends(index, weight) for weight in weights)}

    def _main_calls(self, block: _Block) -> set[LayerCall]:
        """The layers of a block's branches that do more than compute a factor."""
        ends = zip(block.branches, block.sum.branches, strict=True)
        main = set().union(*(main_path(self.flow, self.layers, path, end) for path, end in ends))
        return {call for call in self.layers.along(block.branch) if not main.isdisjoint(self.layers.operations[call])}

    def _mark_gating(self, blocks: list[_Block]) -> None:
        for block in blocks:
            main = self._main_calls(block)
            for call in self.layers.along(block.branch):
                if call not in main:
                    self.layers.layers[call] = replace(self.layers.layers[call], gating=True)

    def _block(self, block: _Block, names: dict[int, str]) -> ResidualBlock:
        branches = [self._layers_on(path) for path in block.branches]
        layers = self._layers_on(block.branch)
        counted = {index for call in self._main_calls(block) for index in self.layers.operations[call]}
        chain = max(self.finder.chain(path, counted) for path in block.branches)
        weights = sum(layer.kind == "weight" for layer in layers)
        return ResidualBlock(
            name=names[block.sum.at],
            branch_layers=layers,
            skip_layers=self._layers_on(block.skip),
            identity_skip=all(leaves_unchanged(self.flow[index]) for index in block.skip),
            ends_in_layer=len(branches) == 1 and self._ends_in_layer(block.sum.branches[0], layers),
            sum=self._sum_module(block.sum.at),
            parallel=tuple(branches) if len(branches) > 1 else (),
            inner=tuple(self._block(inner, names) for inner in block.inner),
            chain=None if chain == weights else chain,
            sites=self._sites(block.sum),
            ends=tuple(
                self._linear_end(end, path) for end, path in zip(block.sum.branches, block.branches, strict=True)
            ),
        )

    def _linear_end(self, end: int, path: list[int]) -> Layer | None:
        """The last layer of a branch where only factors and changes of layout lie between it and the sum."""
        inside = set(path)
        while end in inside:
            call = self.layers.owner.get(end)
            layer = None if call is None else self.layers.layers[call]
            if layer is not None and layer.kind not in ("scale", "dropout"):
                return layer
            passes = layer is not None or leaves_unchanged(self.flow[end]) or self._sum_module(end) is not None
            if not passes or len(self.flow[end].parents) != 1:
                return None
            (end,) = self.flow[end].parents
        return None

    def _sites(self, total: Sum) -> tuple[Site, ...]:
        """The additions that make up a sum, where all are operators in forward code: one for every branch."""
        sites = []
        pending = [(total.at, set(total.branches))]
        while pending:
            at, ends = pending.pop()
            operation = self.flow[at]
            terms = [argument.index for argument in operation.arguments[:2] if isinstance(argument, Operand)]
            if operation.name != "add" or len(terms) != 2 or self._sum_module(at) is not None:
                return ()
            for position, term in enumerate(terms):
                if term in ends:
                    ends.discard(term)
                    sites.append(self._site(at, position))
                elif term != total.skip:
                    pending.append((term, ends))
        return tuple(reversed(sites))

    def _site(self, at: int, branch: int) -> Site:
        operation = self.flow[at]
        additions = self.additions[operation.module, operation.call]
        return Site(operation.module, additions.index(at), branch, len(additions))

    def _ends_in_layer(self, end: int, layers: tuple[Layer, ...]) -> bool:
        """Whether the sum adds the last layer's output as it is; a `ResidualSum`'s multiplier is part of the sum."""
        while (sum_module := self._sum_module(end)) is not None:
            (end,) = self.flow[end].parents
            layers = tuple(layer for layer in layers if layer.path != sum_module)
        call = self.layers.owner.get(end)
        if call is None or not layers:
            return False
        last = self.layers.layers[call]
        return last == layers[-1] and last.kind in ("weight", "norm", "activation")

    def _sum_module(self, index: int) -> str | None:
        path = self.flow[index].module
        return path if isinstance(self.model.get_submodule(path), ResidualSum) else None

    def _layers_on(self, path: Iterable[int]) -> tuple[Layer, ...]:
        return tuple(self.layers.layers[call] for call in self.layers.along(list(path)))

    def _names(self, outer: list[_Block]) -> dict[int, str]:
        """The module around each sum and its branch; several blocks in one module are `layer.0#1`, `layer.0#2`.

        Blocks inside another's branch are numbered after the outermost; one outermost alone needs no number.
        """
        blocks = [*outer, *(inner for block in outer for inner in block.walk() if inner is not block)]
        modules = [self._module_of(block) for block in blocks]
        outermost = Counter(modules[: len(outer)])
        total, seen = Counter(modules), Counter[str]()
        names: dict[int, str] = {}
        for block, module in zip(blocks, modules, strict=True):
            seen[module] += 1
            alone = total[module] == 1 or (outermost[module] == 1 and seen[module] == 1)
            names[block.sum.at] = module if alone else f"{module}#{seen[module]}"
        return names

    def _module_of(self, block: _Block) -> str:
        """The innermost module that runs the sum and, so that a module that only adds is none, part of a branch."""
        around = self.flow[block.sum.at].modules
        branch = {path for index in block.branch for path in self.flow[index].modules}
        innermost = [path for path in reversed(around) if not isinstance(self.model.get_submodule(path), ResidualSum)]
        return next((path for path in innermost if path in branch), around[0])


def _nested(blocks: list[_Block]) -> list[_Block]:
    """The outermost blocks; each other one is put into the smallest whose branch contains its sum."""
    outermost: list[_Block] = []
    for block in sorted(blocks, key=lambda one: len(one.branch), reverse=True):
        home = _home(block, outermost)
        (outermost if home is None else home.inner).append(block)
    return _in_order(outermost)


def _home(block: _Block, candidates: list[_Block]) -> _Block | None:
    for candidate in candidates:
        if candidate is not block and block.sum.at in set(candidate.branch):
            return _home(block, candidate.inner) or candidate
    return None


def _in_order(blocks: list[_Block]) -> list[_Block]:
    blocks.sort(key=lambda block: block.sum.at)
    for block in blocks:
        block.inner = _in_order(block.inner)
    return blocks
