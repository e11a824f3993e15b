"""What is on no path of a block: layers of the stem, around a block, between blocks, of the head; the unresolved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from normless.residual.blocks import Layer, ResidualBlock, Unresolved
from normless.residual.classify import NORMS
from normless.residual.graph import Dataflow, Operand
from normless.residual.layers import LayerCall, Layers
from normless.residual.operations import leaves_unchanged
from normless.residual.sums import Sum, SumFinder

# They add and multiply at once, so that no operation holds the branch's output by itself.
_FUSED = {"addmm", "baddbmm", "addbmm", "addcmul", "addcdiv", "lerp", "addmv"}
_VIEWS = {"view", "slice", "select", "permute", "transpose", "narrow", "unsqueeze", "squeeze", "getitem", "diagonal"}
_CONTROL_FLOW = {"cond", "while_loop", "scan", "map_impl", "map"}


@dataclass
class Outside:
    """Gives the layers on no path of a block to the stem, the trunk, the head, or to a block around its paths."""

    flow: Dataflow
    layers: Layers
    blocks: list[ResidualBlock]
    sums: list[Sum]

    def place(self, inside: set[LayerCall]) -> tuple[list[Layer], list[Layer], list[Layer]]:
        """Extend `blocks` by their shared layers and those after their sums; return stem, trunk and head layers.

        A layer is shared by the next block where it lies in that block's module, and comes after the sum of the
        previous one where it lies in that one's. Where both hold or neither (all at the root), what reads the sum
        directly comes after it: an activation, or a norm that the branch does without (post-norm).
        """
        stem: list[Layer] = []
        trunk: list[Layer] = []
        head: list[Layer] = []
        blocks, sums = self.blocks, self.sums
        passed = 0
        for call, layer in self.layers.layers.items():
            if call in inside:
                continue
            first = self.layers.operations[call][0]
            while passed < len(sums) and sums[passed].at < first:
                passed += 1
            before, following = passed - 1, passed
            if self._is_shared(call, before, following):
                shared = (*blocks[following].shared_layers, layer)
                blocks[following] = replace(blocks[following], shared_layers=shared)
            elif before >= 0 and self._is_after_sum(call, before, following):
                blocks[before] = replace(blocks[before], after_sum=(*blocks[before].after_sum, layer))
            else:
                (stem if before < 0 else head if following == len(sums) else trunk).append(layer)
        return stem, trunk, head

    def _is_shared(self, call: LayerCall, before: int, following: int) -> bool:
        blocks = self.blocks
        if following == len(blocks) or not _belongs(call, blocks[following]):
            return False
        leads_there = self.flow.depends(self.sums[following].fork, self.layers.operations[call][-1])
        if before < 0 or not _belongs(call, blocks[before]):
            return leads_there
        # One module holds both blocks: only a projecting block shares its pre-activation.
        return leads_there and bool(blocks[following].skip) and not self._reads_sum(call, before)

    def _is_after_sum(self, call: LayerCall, before: int, following: int) -> bool:
        block = self.blocks[before]
        if not self.flow.depends(self.layers.operations[call][0], self.sums[before].at):
            return False
        neighbours = [_module(one) for one in self.blocks[following : following + 1]]
        if _module(block) not in ("", *neighbours):
            return _belongs(call, block)
        kind = self.layers.layers[call].kind
        if kind == "norm" and any(layer.kind == "norm" for layer in block.branch_layers + block.after_sum):
            return False
        return kind in ("norm", "activation") and self._reads_sum(call, before)

    def _reads_sum(self, call: LayerCall, number: int) -> bool:
        """Whether a layer reads a block's sum itself, or what the block's own layers after the sum made of it."""
        (at,) = self.flow[self.layers.operations[call][0]].parents[:1]
        while at != self.sums[number].at:
            owner = self.layers.owner.get(at)
            owned = owner is not None and self.layers.layers[owner] in self.blocks[number].after_sum
            if not (owned or leaves_unchanged(self.flow[at])) or not self.flow[at].parents:
                return False
            at = self.flow[at].parents[0]
        return True


def _module(block: ResidualBlock) -> str:
    return block.name.partition("#")[0]


def _belongs(call: LayerCall, block: ResidualBlock) -> bool:
    """Whether a layer is inside the block's module; at the root it is unknown, so False."""
    module = _module(block)
    return module != "" and call.path.startswith((f"{module}.", f"{module}:"))


def find_unresolved(model: nn.Module, flow: Dataflow, layers: Layers, finder: SumFinder) -> tuple[Unresolved, ...]:
    """Name each thing that cannot be understood once, by its module and the reason."""
    items = [
        *_fused_sums(flow, layers, finder),
        *_sums_into_views(flow),
        *_subgraphs(flow),
        *_idle_norms(model, layers),
    ]
    return tuple(dict.fromkeys(items))


def _fused_sums(flow: Dataflow, layers: Layers, finder: SumFinder) -> Iterator[Unresolved]:
    for index, operation in enumerate(flow.operations):
        if operation.name in _FUSED and index not in layers.owner and isinstance(operation.arguments[0], Operand):
            added = operation.arguments[0].index
            others = [parent for parent in operation.parents if parent != added]
            if others and finder.fork_of(added, [added, *others]) is not None:
                yield Unresolved(
                    operation.module,
                    f"{operation.name} adds and multiplies at once, so that no branch can be separated from its sum; "
                    "write the product and the addition as two operations",
                )


def _sums_into_views(flow: Dataflow) -> Iterator[Unresolved]:
    for operation in flow.operations:
        if not (operation.in_place and operation.arguments and isinstance(operation.arguments[0], Operand)):
            continue
        written = operation.arguments[0].index
        if flow[written].name in _VIEWS and len(operation.parents) > 1 and flow[written].parents:
            (base, *_) = flow[written].parents
            if any(reader > written for reader in flow.consumers[base]):
                yield Unresolved(
                    operation.module,
                    "it writes into a part of a tensor that is read again as a whole, which the dataflow "
                    "does not show; build the whole with torch.cat or torch.where",
                )


def _subgraphs(flow: Dataflow) -> Iterator[Unresolved]:
    for operation in flow.operations:
        if operation.subgraph and (operation.parameters or operation.name in _CONTROL_FLOW):
            yield Unresolved(
                operation.module,
                f"{operation.name} runs a graph of its own, whose layers and sums are not read",
            )


def _idle_norms(model: nn.Module, layers: Layers) -> Iterator[Unresolved]:
    ran = {call.path for call in layers.layers}
    for path, module in model.named_modules():
        learns = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        if isinstance(module, NORMS) and learns and path not in ran:
            yield Unresolved(path, "this norm did not run on these inputs in this mode, so that its γ has no role")
