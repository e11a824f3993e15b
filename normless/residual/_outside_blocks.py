"""Assign the layers outside the paths of blocks to stem, trunk, head or a block; list unresolved operations."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from normless.residual import _operations as ops
from normless.residual._blocks import Layer, ResidualBlock, Unresolved
from normless.residual._graph import Operand, Operation
from normless.residual._layers import LayerRun, Layers
from normless.residual._network import ResidualMap
from normless.residual._sums import Sum, SumFinder


@dataclass
class OuterLayers:
    """Assign the layers outside the paths of blocks to the stem, the trunk, the head, or a block around its paths."""

    layers: Layers
    blocks: list[ResidualBlock]
    sums: list[Sum]

    def place(self, inside: set[LayerRun]) -> ResidualMap:
        """Build the map from the blocks, given the runs of layers on their paths.

        A layer belongs to the block with the module that contains it. If both neighbours or neither contain it (all
        at the root), an activation that reads the sum directly comes after the sum, and so does a norm if the branch
        has none (post-norm).
        """
        stem, trunk, head = list[Layer](), list[Layer](), list[Layer]()
        blocks, sums, flow = self.blocks, self.sums, self.layers.flow
        fork = sums[0].fork if sums else len(flow.operations)
        latest: dict[int, LayerRun] = {}
        for run in self.layers.runs:
            if run in inside:
                continue
            following = bisect_left(sums, run.operations[0], key=lambda total: total.at)
            before = following - 1
            if self._is_shared(run, before, following):
                shared = (*blocks[following].shared_layers, run.layer)
                blocks[following] = replace(blocks[following], shared_layers=shared)
            elif before >= 0 and self._is_after_sum(run, before, following):
                blocks[before] = replace(blocks[before], after_sum=(*blocks[before].after_sum, run.layer))
            else:
                first = run.operations[0]
                in_stem = before < 0 and not (first > fork and flow.depends(first, fork)) and not self._beside(run)
                row = stem if in_stem else head if following == len(sums) else trunk
                if (former := latest.get(id(row))) and not flow.depends(run.operations[-1], former.operations[-1]):
                    run.layer = replace(run.layer, beside=True)
                row.append(run.layer)
                latest[id(row)] = run
        return ResidualMap(tuple(blocks), tuple(stem), tuple(trunk), tuple(head))

    def _beside(self, run: LayerRun) -> bool:
        """Whether a layer runs in the first block's module without feeding the block, as in a second stream."""
        feeds = any(self.layers.flow.depends(total.at, run.operations[-1]) for total in self.sums[:1])
        return bool(self.blocks) and _belongs(run, self.blocks[0]) and not feeds

    def _is_shared(self, run: LayerRun, before: int, following: int) -> bool:
        blocks = self.blocks
        if following == len(blocks) or not _belongs(run, blocks[following]):
            return False
        fork = self.sums[following].fork
        if not self.layers.flow.depends(fork, run.operations[-1]):
            return False
        if before < 0:
            # A module with weight layers before its first fork is more than a block: it contains the stem.
            weights = [other for other in self.layers.runs if other.layer.kind == "weight"]
            return not any(_belongs(weight, blocks[0]) for weight in weights if weight.operations[0] <= fork)
        # If one module contains both blocks, only a projecting block shares its pre-activation.
        shares = bool(blocks[following].skip) and not self._reads_sum(run, before)
        return shares or not _belongs(run, blocks[before])

    def _is_after_sum(self, run: LayerRun, before: int, following: int) -> bool:
        block = self.blocks[before]
        if not self.layers.flow.depends(run.operations[0], self.sums[before].at):
            return False
        neighbours = [neighbour.module for neighbour in self.blocks[following : following + 1]]
        if block.module not in ("", *neighbours):
            return _belongs(run, block)
        kind = run.layer.kind
        if kind == "norm" and any(layer.kind == "norm" for layer in block.branch_layers + block.after_sum):
            return False
        return kind in ("norm", "activation") and self._reads_sum(run, before)

    def _reads_sum(self, run: LayerRun, number: int) -> bool:
        """Whether a layer reads a block's sum, directly or through the block's other layers after the sum."""
        flow = self.layers.flow
        total, after = self.sums[number].at, self.blocks[number].after_sum

        def passes(at: int) -> bool:
            owner = self.layers.owner.get(at)
            return at != total and (flow[at].leaves_unchanged or (owner is not None and owner.layer in after))

        return flow.source(flow[run.operations[0]].parents[0], passes) == total


def _belongs(run: LayerRun, block: ResidualBlock) -> bool:
    """Whether a layer is inside the block's module; False if that is the root, where this is unknown."""
    module = block.module
    return module != "" and run.layer.path.startswith((f"{module}.", f"{module}:"))


def find_unresolved(finder: SumFinder) -> tuple[Unresolved, ...]:
    """List each unresolved operation once, by its module and the reason."""
    reasons = {
        _is_fused_sum: "{} adds and multiplies at once, so that no branch can be separated from its sum; write the "
        "product and the addition as two operations",
        _is_indexed_sum: "{} adds to elements that are given one by one, which may be all or a few; write x + f(x), "
        "or build the whole with torch.cat or torch.where",
        _is_sum_into_view: "it writes into a part of a tensor that is read again as a whole, which the dataflow does "
        "not show; build the whole with torch.cat or torch.where",
        _is_merge: "it adds paths from one activation that all have weights and activations, so that none is a skip "
        "path",
        _is_subgraph: "{} runs a graph of its own, whose layers and sums are not read",
    }
    items = (
        Unresolved(operation.module, reason.replace("{}", operation.name))
        for holds, reason in reasons.items()
        for index, operation in enumerate(finder.flow.operations)
        if holds(finder, index, operation)
    )
    return tuple(dict.fromkeys(items))


def _is_fused_sum(finder: SumFinder, index: int, operation: Operation) -> bool:
    added = operation.arguments[0] if operation.name in ops.FUSED_SUM and index not in finder.layers.owner else None
    if not isinstance(added, Operand):
        return False
    others = [parent for parent in operation.parents if parent != added.index]
    return bool(others) and finder.fork_of(added.index, [added.index, *others]) is not None


def _is_indexed_sum(finder: SumFinder, _: int, operation: Operation) -> bool:
    added = operation.arguments[0] if operation.name in ops.INDEXED_SUM else None
    added = added[0] if isinstance(added, tuple) and added else added
    if not isinstance(added, Operand) or (operation.name == "index_put" and True not in operation.arguments[3:]):
        return False
    terms = [added.index, *(parent for parent in operation.parents if parent != added.index)]
    fork = finder.fork_of(added.index, terms) if len(terms) > 1 else None
    return fork is not None and not finder.layers.has_weight(finder.flow.between(fork, added.index))


def _is_sum_into_view(finder: SumFinder, _: int, operation: Operation) -> bool:
    flow = finder.flow
    is_write = operation.in_place and operation.floating and len(operation.parents) > 1
    written = operation.arguments[0] if is_write else None
    if not isinstance(written, Operand) or flow[written.index].name not in ops.VIEW:
        return False
    bases = flow[written.index].parents[:1]
    if flow[written.index].name == "getitem" and not any(flow[base].name in ops.SPLIT for base in bases):
        # An item of several results, as the values of topk, is not part of another tensor.
        return False
    return any(reader > written.index for base in bases for reader in flow.consumers[base])


def _is_merge(finder: SumFinder, index: int, _: Operation) -> bool:
    """Whether paths that could each be a branch or the skip path merge outside all blocks."""
    around = (finder.flow.between(total.fork, total.at) for total in finder.sums.values())
    is_open = index in finder.merges and index not in finder.sums
    return is_open and not any(index in inside for inside in around)


def _is_subgraph(_: SumFinder, index: int, operation: Operation) -> bool:
    return operation.subgraph and (bool(operation.parameters) or operation.name in ops.CONTROL_FLOW)
