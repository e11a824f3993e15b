"""The residual map of any network, read from the dataflow that `torch.export` shows.

A residual sum is an addition of two activations of one shape that both descend from one fork; the fork is the
sum's immediate dominator. Class names play no part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.export import export
from torch.fx import Node

from normless.errors import UnresolvedStructureError
from normless.nn import ResidualSum
from normless.residual.blocks import Layer, ResidualBlock, ResidualMap
from normless.residual.graph import Dataflow, module_stack
from normless.residual.operations import find_layers, leaves_unchanged, operation


def traced_map(model: nn.Module, inputs: tuple[Any, ...]) -> ResidualMap:
    """Export the network on example inputs and find its residual blocks; see `residual_map`."""
    try:
        program = export(model, inputs, strict=False)
    except Exception as error:
        raise UnresolvedStructureError(
            f"torch.export could not trace this {type(model).__name__} on the given inputs, so its residual "
            f"structure stays unknown: {type(error).__name__}: {error}"
        ) from error
    return _Tracer(model, Dataflow.of(program)).map()


@dataclass(frozen=True)
class _Found:
    """A block and where in the graph its sum is."""

    sum: Node
    block: ResidualBlock


class _Tracer:
    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self.model = model
        self.flow = flow
        self.order = {node: index for index, node in enumerate(flow.nodes)}
        self.dominators = flow.immediate_dominators()
        self.owners, self.layers = find_layers(model, flow)
        self.position: dict[Layer, int] = {}
        for node, call in self.owners.items():
            self.position.setdefault(self.layers[call], self.order[node])

    def map(self) -> ResidualMap:
        found = [block for node in self.flow.nodes if (block := self._block_at(node)) is not None]
        found = _distinctly_named(found)
        inside = {layer for item in found for layer in item.block.branch_layers + item.block.skip_layers}
        outside = [layer for layer in self.layers.values() if layer not in inside]
        return self._assign(found, sorted(outside, key=self.position.__getitem__))

    def _block_at(self, node: Node) -> _Found | None:
        if operation(node) != "add" or len(self.flow.parents[node]) != 2:
            return None
        one, other = self.flow.parents[node]
        fork = self.dominators[node]
        if fork is None or _shape(one) != _shape(other):
            return None
        paths = [self._path(fork, one), self._path(fork, other)]
        weights = [sum(layer.kind == "weight" for layer in self._layers_on(path)) for path in paths]
        if not any(weights):
            return None
        # The branch is the side with more weight layers; between equals, the longer side.
        skip, branch = sorted((0, 1), key=lambda side: (weights[side], len(paths[side]), side))
        end = self._entering_sum((one, other)[branch])
        layers = self._layers_on(paths[branch])
        stack = [path for path in module_stack(node) if not self._is_sum(path)]
        sums = [path for path in module_stack(node) if self._is_sum(path)]
        block = ResidualBlock(
            name=stack[-1] if stack else "",
            branch_layers=layers,
            skip_layers=self._layers_on(paths[skip]),
            identity_skip=all(leaves_unchanged(step) for step in paths[skip]),
            ends_in_layer=end in self.owners and self.layers[self.owners[end]] == layers[-1],
            sum=sums[-1] if sums else None,
        )
        return _Found(node, block)

    def _entering_sum(self, node: Node) -> Node:
        """The operation whose output enters a `ResidualSum`, seen from one inside it such as its multiplier's."""
        while node not in self.owners and any(self._is_sum(path) for path in module_stack(node)[-1:]):
            (node,) = self.flow.parents[node]
        return node

    def _is_sum(self, path: str) -> bool:
        return isinstance(self.model.get_submodule(path), ResidualSum)

    def _path(self, fork: Node, end: Node) -> list[Node]:
        return self.flow.between(fork, end, self.order)

    def _layers_on(self, path: list[Node]) -> tuple[Layer, ...]:
        calls = dict.fromkeys(self.owners[node] for node in path if node in self.owners)
        return tuple(self.layers[call] for call in calls)

    def _assign(self, found: list[_Found], outside: list[Layer]) -> ResidualMap:
        """Give every layer outside the blocks' paths to the stem, a neighbouring block, the trunk or the head."""
        sums = [self.order[item.sum] for item in found]
        stem: list[Layer] = []
        trunk: list[Layer] = []
        head: list[Layer] = []
        blocks = [item.block for item in found]
        for layer in outside:
            passed = sum(position < self.position[layer] for position in sums)
            before = blocks[passed - 1] if passed else None
            following = blocks[passed] if passed < len(blocks) else None
            if following is not None and _belongs(layer, following):
                blocks[passed] = replace(following, shared_layers=(*following.shared_layers, layer))
            elif before is not None and _belongs(layer, before):
                blocks[passed - 1] = replace(before, after_sum=(*before.after_sum, layer))
            else:
                (stem if before is None else head if following is None else trunk).append(layer)
        return ResidualMap(tuple(blocks), tuple(stem), tuple(trunk), tuple(head))


def _belongs(layer: Layer, block: ResidualBlock) -> bool:
    """Whether a layer between two blocks is inside the block's module; at the root nothing tells."""
    module = block.name.partition("#")[0]
    return module != "" and layer.path.startswith((f"{module}.", f"{module}:"))


def _shape(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _distinctly_named(found: list[_Found]) -> list[_Found]:
    """Blocks of one module, which share its name, told apart by a number: `layer.0#1`, `layer.0#2`."""
    total = Counter(item.block.name for item in found)
    seen: Counter[str] = Counter()
    named = []
    for item in found:
        name = item.block.name
        seen[name] += 1
        if total[name] > 1:
            item = replace(item, block=replace(item.block, name=f"{name}#{seen[name]}"))
        named.append(item)
    return named
