"""Read the residual map of any network from the dataflow of a forward pass, never from class names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torch import nn

from normless.nn import ResidualSum
from normless.recording._calls import ADDITIONS
from normless.residual._blocks import FORWARD, Addition, Head, Layer, ResidualBlock
from normless.residual._graph import Dataflow, Fixed
from normless.residual._layers import LayerRun, Layers
from normless.residual._main_path import main_path, passed_on
from normless.residual._network import ResidualMap
from normless.residual._outputs import heads_of
from normless.residual._outside_blocks import OuterLayers, find_unresolved
from normless.residual._sums import Sum, SumFinder


def map_of(model: nn.Module, flow: Dataflow) -> ResidualMap:
    """Read the residual map of a network from its dataflow."""
    return _Tracer(model, Layers(model, flow)).map()


@dataclass
class _Block:
    """A residual sum with the operations on its paths, its non-gating layers (`main`) and its inner blocks."""

    sum: Sum
    skip: list[int]
    branches: list[list[int]]
    branch: list[int]
    main: set[LayerRun]
    inner: list[_Block] = field(default_factory=list)

    def walk(self) -> Iterator[_Block]:
        """Iterate over the block and the blocks inside it, outer before inner."""
        yield self
        for block in self.inner:
            yield from block.walk()


class _Tracer:
    def __init__(self, model: nn.Module, layers: Layers) -> None:
        self.model = model
        self.layers = layers
        self.flow = layers.flow
        self.finder = SumFinder(layers)
        modules = layers.names.modules
        self._sum_modules = {path for path, module in modules.items() if isinstance(module, ResidualSum)}

    def map(self) -> ResidualMap:
        between = self.flow.between
        self._branches = {
            at: [self._own(between(total.fork, end), total.fork) for end in total.branches]
            for at, total in self.finder.sums.items()
        }
        outer = _nested([self._paths(total) for total in self.finder.sums.values()])
        names = self._names(outer)
        for block in outer:
            for run in set(self.layers.along(block.branch)) - block.main:
                run.layer = replace(run.layer, gating=True)
        inside = {run for block in outer for run in self.layers.along([*block.branch, *block.skip])}
        self._levels = self._sums_in_series()
        mapped = [self._block(block, names) for block in outer]
        whole = OuterLayers(self.layers, mapped, [block.sum for block in outer]).place(inside)
        return replace(whole, unresolved=find_unresolved(self.finder), flow=self.flow, heads=self._heads(whole))

    def _sums_in_series(self) -> dict[int, int]:
        """Return for each sum the number of sums in series up to its fork, and itself."""
        # Up to each operation, including itself.
        levels: list[int] = []
        found: dict[int, int] = {}
        for at, operation in enumerate(self.flow.operations):
            level = max((levels[parent] for parent in operation.parents), default=0)
            if at in self.finder.sums:
                found[at] = 1 + levels[self.finder.sums[at].fork]
                level = max(level, found[at])
            levels.append(level)
        return found

    def _heads(self, whole: ResidualMap) -> tuple[Head, ...]:
        """Find the heads among the layers after the blocks, or among all layers if there are no blocks."""
        after = {*(whole.head_layers if whole.blocks else whole.stem_layers)}
        runs = [run for run in self.layers.runs if run.layer in after and run.layer.kind == "weight"]
        return heads_of(
            self.flow,
            self.layers.kind,
            ((run.layer.path, run.operations, self.layers.names.window(run.layer.parameters)) for run in runs),
        )

    def _paths(self, total: Sum) -> _Block:
        branches = [sorted({*path, *self._side_inputs(path, total)}) for path in self._branches[total.at]]
        branch = sorted({index for path in branches for index in path})
        ends = zip(branches, total.branches, strict=True)
        main = [index for path, end in ends for index in main_path(self.layers, path, end)]
        return _Block(total, self.flow.between(total.fork, total.skip), branches, branch, {*self.layers.along(main)})

    def _own(self, path: list[int], fork: int) -> list[int]:
        """Remove blocks that start before the fork from a path: of b + g(a) after a + f(b), keep only g."""
        sums = {at: self.finder.sums[at] for at in path if at in self.finder.sums}
        foreign = [at for at, total in sums.items() if not self.flow.depends(total.fork, fork)]
        return [index for index in path if not any(self.flow.depends(at, index) for at in foreign)]

    def _side_inputs(self, path: list[int], total: Sum) -> set[int]:
        """Find operations on other activations, up to one weight layer, as key and value in cross-attention."""
        inside = {*path, total.fork}
        inputs: set[int] = set()
        pending = list(path)
        while pending:
            for parent in self.flow[pending.pop()].parents:
                if not any(parent in known for known in (inside, inputs, self.finder.sums)):
                    inputs.add(parent)
                    if self.layers.kind(parent) != "weight":
                        pending.append(parent)
        # Operations that others read are not part of the branch, nor are those that no weight layer produces.
        while shared := {index for index in inputs if not inside | inputs >= set(self.flow.consumers[index])}:
            inputs -= shared
        # Ancestors of the fork are before the block.
        inputs = {index for index in inputs if not self.flow.depends(total.fork, index)}
        # Operations of another stream for a joint attention are on the branch of that stream's block.
        for at, branches in self._branches.items() if inputs else ():
            fork = self.finder.sums[at].fork
            if not self.flow.depends(total.fork, fork) and not any(total.at in path for path in branches):
                inputs = inputs.difference(*branches)
        return {
            index for index in inputs if self.layers.has_weight(at for at in inputs if self.flow.depends(index, at))
        }

    def _block(self, block: _Block, names: dict[int, str]) -> ResidualBlock:
        branches = [self._layers_on(path) for path in block.branches]
        layers = self._layers_on(block.branch)
        return ResidualBlock(
            name=names[block.sum.at],
            branch_layers=layers,
            skip_layers=self._layers_on(block.skip),
            identity_skip=all(self.flow[index].leaves_unchanged for index in block.skip),
            ends_in_layer=len(branches) == 1 and self._ends_in_layer(block.sum, layers),
            sum=self._sum_module(block.sum.at),
            parallel=tuple(branches) if len(branches) > 1 else (),
            inner=tuple(self._block(inner, names) for inner in block.inner),
            chain=max(self.finder.chain(path, block.main) for path in block.branches),
            additions=self._additions(block.sum),
            ends=tuple(self._linear_end(block.sum, number, path) for number, path in enumerate(block.branches)),
            last_weights=tuple(map(self._last_weights, block.sum.branches, block.branches)),
            factor=self._added(block.sum) * min(map(self._constant, block.sum.branches, block.branches), key=abs),
            levels=(self._levels[block.sum.at],),
            interpolates=block.sum.interpolates,
            is_global=any(
                self.flow.depends(later.sum.fork, earlier.sum.at) for earlier, later in pairwise(block.inner)
            ),
        )

    def _linear_end(self, total: Sum, number: int, path: list[int]) -> Layer | None:
        """Return the last layer of a branch if only factors and changes of layout lie between it and the sum."""

        def passes(at: int) -> bool:
            step, kind = self.flow[at], self.layers.kind(at)
            if kind is None:
                kind = "scale" if step.leaves_unchanged or step.is_factor or self._sum_module(at) else None
            return at in path and kind in ("scale", "dropout") and len(step.parents) == 1

        end = self.flow.source(total.branches[number], passes)
        run = self.layers.owner.get(end) if end in path and not total.interpolates else None
        return run.layer if run is not None and run.layer.kind not in ("scale", "dropout") else None

    def _added(self, total: Sum) -> float:
        """Return the number by which the addition multiplies a branch, as in torch.add(x, branch, alpha=0.1)."""
        operation = self.flow[total.at]
        numbers = [argument for argument in operation.arguments[2:] if isinstance(argument, (int, float))]
        is_last = operation.name in ("add", "sub") and operation.operands[-1:] == list(total.branches[-1:])
        return float(numbers[0]) if is_last and numbers else 1.0

    def _constant(self, end: int, path: list[int]) -> float:
        """Return the product of the constants between the last layer of a branch and the sum."""
        product, at = 1.0, end
        while at in path and len(self.flow[at].parents) == 1 and self.layers.kind(at) in (None, "scale", "dropout"):
            operation = self.flow[at]
            values = [*operation.numbers, *(self._stored(fixed) for fixed in operation.fixed)]
            if operation.name in ("mul", "div") and values and values[0]:
                product *= values[0] if operation.name == "mul" else 1 / values[0]
            at = operation.parents[0]
        return product

    def _stored(self, fixed: Fixed) -> float:
        """Return the value of a buffer of one element; 1 for anything learned, computed or of several elements."""
        if fixed.parameters or len(fixed.buffers) != 1 or fixed.rooted:
            return 1.0
        value = self.model.get_buffer(fixed.buffers[0])
        return float(value) if value.numel() == 1 and not value.is_meta else 1.0

    def _last_weights(self, end: int, path: list[int]) -> tuple[Layer, ...]:
        """Return the weight layers that a branch ends in, several if it concatenates or adds their outputs."""
        found: dict[Layer, None] = {}
        pending = [end]
        while pending:
            at = pending.pop()
            if self.layers.kind(at) == "weight":
                found[self.layers.owner[at].layer] = None
            else:
                reads = sorted(set(path).intersection(passed_on(self.layers, at)))
                pending += reads if self.flow[at].name in {"add", "sub", "cat", "stack"} else reads[-1:]
        return tuple(reversed(found))

    def _additions(self, total: Sum) -> tuple[Addition, ...]:
        """Return the additions in forward code that join branches to the skip path; none if a module adds."""
        additions: list[Addition] = []
        at = total.at
        while at != total.skip:
            operation = self.flow[at]
            terms = operation.operands
            others = [term for term in terms if term not in total.branches]
            ahead = [total.skip] if total.skip in others else others
            one_ahead = len(terms) == 2 and len(ahead) == 1
            call = operation.made_by
            if call is None or call.name not in ADDITIONS or not one_ahead or self._sum_module(at) is not None:
                return ()
            onward = terms.index(ahead[0])
            additions.append(Addition(call, 1 - onward))
            at = terms[onward]
        return tuple(reversed(additions))

    def _ends_in_layer(self, total: Sum, layers: tuple[Layer, ...]) -> bool:
        """Whether the sum adds the last layer's output directly; a `ResidualSum`'s multiplier is part of the sum."""
        end = total.branches[0]
        run = self.layers.owner.get(self.flow.source(end, lambda at: self._sum_module(at) is not None))
        if total.interpolates:
            return False
        last = [layer for layer in layers if layer.path != self._sum_module(end)][-1:]
        return run is not None and run.layer in last and run.layer.kind in ("weight", "norm", "activation")

    def _sum_module(self, index: int) -> str | None:
        path = self.flow[index].module
        return path if path in self._sum_modules else None

    def _layers_on(self, path: list[int]) -> tuple[Layer, ...]:
        return tuple(run.layer for run in self.layers.along(path))

    def _names(self, outer: list[_Block]) -> dict[int, str]:
        """Name each block by its module; several blocks in one module are `layer.0#1`, …, outermost first.

        A block in forward code of the network itself is `forward#PATH`, by the first weight layer of its branch.
        """
        blocks = [*outer, *(inner for block in outer for inner in block.walk() if inner is not block)]
        # A module under several names counts once.
        modules = [self.layers.names.canonical(self._module_of(block)) for block in blocks]
        outermost = Counter(modules[: len(outer)])
        total, seen = Counter(modules), Counter[str]()
        names: dict[int, str] = {}
        for block, module in zip(blocks, modules, strict=True):
            seen[module] += 1
            alone = total[module] == 1 or (outermost[module] == 1 and seen[module] == 1)
            names[block.sum.at] = module if alone else f"{module or FORWARD}#{seen[module]}"
            if not module:
                layers = (run.layer for run in self.layers.along(block.branch))
                first = next((layer.path for layer in layers if layer.kind == "weight"), str(seen[module]))
                own = f"{FORWARD}#{first}"
                names[block.sum.at] = own if own not in names.values() else f"{own}#{seen[module]}"
        return names

    def _module_of(self, block: _Block) -> str:
        """Return the innermost module that runs the sum and a part of a branch, not a module that only adds."""
        around = self.flow[block.sum.at].modules
        own = (index for index in block.branch if self._sum_module(index) is None)
        branch = {path for index in own for path in self.flow[index].modules}
        innermost = [path for path in reversed(around) if path not in self._sum_modules]
        return next((path for path in innermost if path in branch), around[0])


def _nested(blocks: list[_Block]) -> list[_Block]:
    """Return the outermost blocks, with every other block inside the smallest block that contains its sum."""
    outermost: list[_Block] = []
    # For each operation, the smallest block so far with the operation on its branch.
    smallest: dict[int, _Block] = {}
    for block in sorted(blocks, key=lambda block: len(block.branch), reverse=True):
        around = smallest.get(block.sum.at)
        (outermost if around is None else around.inner).append(block)
        smallest |= dict.fromkeys(block.branch, block)
    for siblings in (outermost, *(block.inner for block in blocks)):
        siblings.sort(key=lambda block: block.sum.at)
    return outermost
