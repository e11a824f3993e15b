"""Where the layers belong that are on no path of a block: stem, around a block, between blocks, head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from normless.residual.blocks import Layer, ResidualBlock
from normless.residual.graph import Dataflow
from normless.residual.layers import LayerCall, Layers
from normless.residual.operations import leaves_unchanged
from normless.residual.sums import Sum


@dataclass
class Outside:
    """Gives the layers on no path of a block to the stem, the trunk, the head, or to a block around its paths."""

    flow: Dataflow
    layers: Layers

    def place(
        self, blocks: list[ResidualBlock], sums: list[Sum], inside: set[LayerCall]
    ) -> tuple[list[Layer], list[Layer], list[Layer]]:
        """Extend `blocks` by their shared layers and those after their sums; return stem, trunk and head layers.

        A layer is shared by the next block where it lies in that block's module, and comes after the sum of the
        previous one where it lies in that one's. Where both hold or neither (all at the root), what reads the sum
        directly comes after it: an activation, or a norm that the branch does without (post-norm).
        """
        stem: list[Layer] = []
        trunk: list[Layer] = []
        head: list[Layer] = []
        passed = 0
        for call, layer in self.layers.layers.items():
            if call in inside:
                continue
            first = self.layers.operations[call][0]
            while passed < len(sums) and sums[passed].at < first:
                passed += 1
            before, following = passed - 1, passed
            if self._is_shared(call, before, following, blocks, sums):
                blocks[following] = replace(
                    blocks[following], shared_layers=(*blocks[following].shared_layers, layer)
                )
            elif before >= 0 and self._is_after_sum(call, before, following, blocks, sums):
                blocks[before] = replace(blocks[before], after_sum=(*blocks[before].after_sum, layer))
            else:
                (stem if before < 0 else head if following == len(sums) else trunk).append(layer)
        return stem, trunk, head

    def _is_shared(
        self, call: LayerCall, before: int, following: int, blocks: list[ResidualBlock], sums: list[Sum]
    ) -> bool:
        if following == len(blocks) or not _belongs(call, blocks[following]):
            return False
        leads_there = self.flow.depends(sums[following].fork, self.layers.operations[call][-1])
        if before < 0 or not _belongs(call, blocks[before]):
            return leads_there
        # One module holds both blocks: only a projecting block shares its pre-activation.
        return (
            leads_there and bool(blocks[following].skip) and not self._reads_sum(call, sums[before], blocks[before])
        )

    def _is_after_sum(
        self, call: LayerCall, before: int, following: int, blocks: list[ResidualBlock], sums: list[Sum]
    ) -> bool:
        block = blocks[before]
        if not self.flow.depends(self.layers.operations[call][0], sums[before].at):
            return False
        has_module = _module(block) != "" and not (
            following < len(blocks) and _module(blocks[following]) == _module(block)
        )
        if has_module:
            return _belongs(call, block)
        kind = self.layers.layers[call].kind
        if kind == "norm" and any(layer.kind == "norm" for layer in block.branch_layers + block.after_sum):
            return False
        return kind in ("norm", "activation") and self._reads_sum(call, sums[before], block)

    def _reads_sum(self, call: LayerCall, found: Sum, block: ResidualBlock) -> bool:
        """Whether a layer reads the sum itself, or what the block's own layers after the sum made of it."""
        (at,) = self.flow[self.layers.operations[call][0]].parents[:1]
        while at != found.at:
            owned = at in self.layers.owner and self.layers.layers[self.layers.owner[at]] in block.after_sum
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
