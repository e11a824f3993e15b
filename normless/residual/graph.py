"""The dataflow of a network as a graph of operations, and who dominates whom in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node


@dataclass
class Dataflow:
    """The operations between a network's inputs and its outputs, in execution order.

    Attributes:
        nodes: every operation that depends on an input; their order is that of execution.
        parents: the operations (or inputs) that a node reads, by node.
        weights: for a node that reads parameters, the qualified names of these, by node.
    """

    nodes: list[Node] = field(default_factory=list)
    parents: dict[Node, list[Node]] = field(default_factory=dict)
    weights: dict[Node, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: ExportedProgram) -> Dataflow:
        """Read the graph of an exported program."""
        signature = program.graph_signature
        inputs = set(signature.user_inputs)
        names = {**signature.inputs_to_parameters}
        flow = cls()
        owned: dict[Node, list[str]] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                if node.name in inputs:
                    flow.nodes.append(node)
                    flow.parents[node] = []
                elif node.name in names:
                    owned[node] = [names[node.name]]
                continue
            if node.op != "call_function":
                continue
            flow._add(node, owned)
        return flow

    def _add(self, node: Node, owned: dict[Node, list[str]]) -> None:
        parents = [parent for parent in node.all_input_nodes if parent in self.parents]
        weights = [name for parent in node.all_input_nodes for name in owned.get(parent, [])]
        if parents:
            self.nodes.append(node)
            self.parents[node] = parents
            if weights:
                self.weights[node] = weights
        elif weights:
            # A parameter on its way to a layer, such as a weight times its multiplier.
            owned[node] = weights

    def immediate_dominators(self) -> dict[Node, Node | None]:
        """For every node the last node that all paths from the inputs to it pass, None where there is none.

        One pass in execution order suffices, since the graph has no cycles: the immediate dominator of a node
        is the nearest common ancestor of its parents in the tree of dominators.
        """
        dominator: dict[Node, Node | None] = {}
        level: dict[Node, int] = {}
        for node in self.nodes:
            parents = self.parents[node]
            common: Node | None = parents[0] if parents else None
            for parent in parents[1:]:
                common = _common(common, parent, dominator, level)
            dominator[node] = common
            level[node] = 0 if common is None else level[common] + 1
        return dominator

    def between(self, start: Node, end: Node, order: dict[Node, int]) -> list[Node]:
        """The nodes on paths from `start` (left out) to `end` (kept), in execution order; none where they are one.

        `start` dominates `end`, so walking up from `end` always comes to it.
        """
        if start is end:
            return []
        found = {end}
        pending = [end]
        while pending:
            for parent in self.parents[pending.pop()]:
                if parent is not start and parent not in found:
                    found.add(parent)
                    pending.append(parent)
        return sorted(found, key=order.__getitem__)


def _common(
    one: Node | None, other: Node | None, dominator: dict[Node, Node | None], level: dict[Node, int]
) -> Node | None:
    while one is not other:
        if one is None or other is None:
            return None
        if level[one] < level[other]:
            other = dominator[other]
        else:
            one = dominator[one]
    return one


def module_stack(node: Node) -> list[str]:
    """Qualified names of the modules whose forward the operation ran in, outermost first."""
    entries: Sequence[tuple[str, object]] = list((node.meta.get("nn_module_stack") or {}).values())
    return [name.removeprefix("L['self']").removeprefix(".") for name, _ in entries]


def owner(model: nn.Module, node: Node) -> tuple[str, nn.Module]:
    """The innermost module whose forward ran the operation, with its qualified name."""
    stack = module_stack(node)
    path = stack[-1] if stack else ""
    return path, model.get_submodule(path)
