"""Random trees of residual blocks give their plan back, and random dataflow graphs what networkx says of them."""

from __future__ import annotations

from dataclasses import dataclass

import networkx
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from normless import ResidualBlock, residual_map
from normless.residual._graph import Dataflow, Operation

WIDTH = 4


@dataclass(frozen=True)
class Plan:
    """A residual block: what its branches hold, each a sequence of layers and blocks; how its skip path goes."""

    branches: tuple[tuple[Plan | str, ...], ...]
    projects: bool = False
    turned: bool = False


@st.composite
def plans(draw: st.DrawFn, depth: int = 2) -> Plan:
    def branch() -> tuple[Plan | str, ...]:
        inner = [draw(plans(depth - 1)) for _ in range(draw(st.integers(0, 2)))] if depth else []
        # Activations on both sides keep a branch from being part of a bigger linear layer.
        parts: list[Plan | str] = ["act", "weight", *(["norm"] if draw(st.booleans()) else []), "act"]
        for block in inner:
            parts += [block, "weight", "act"]
        return (*parts, "weight")

    several = draw(st.integers(1, 3 if depth else 2))
    return Plan(tuple(branch() for _ in range(several)), draw(st.booleans()) and several == 1, draw(st.booleans()))


class Planned(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.turned = plan.turned
        self.skip = nn.Linear(WIDTH, WIDTH) if plan.projects else nn.Identity()
        self.branches = nn.ModuleList(nn.Sequential(*map(_module, branch)) for branch in plan.branches)

    def forward(self, x: Tensor) -> Tensor:
        terms = [self.skip(x), *(branch(x) for branch in self.branches)]
        total = terms.pop(-1 if self.turned else 0)
        for term in terms:
            total = total + term
        return total


def _module(part: Plan | str) -> nn.Module:
    if isinstance(part, Plan):
        return Planned(part)
    return {"act": nn.ReLU(), "weight": nn.Linear(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH)}[part]


def planned(block: ResidualBlock, plan: Plan, path: str) -> None:
    """Hold a block of the map against its plan; what lies where follows from the module names alone."""
    assert block.name == path
    assert block.identity_skip is not plan.projects
    assert block.skip == ((f"{path}.skip",) if plan.projects else ())
    found = {tuple(layer.path for layer in branch if layer.kind == "weight") for branch in block.branches}
    assert found == {tuple(_weights(branch, f"{path}.branches.{i}")) for i, branch in enumerate(plan.branches)}
    assert block.m == max(_in_series(branch) for branch in plan.branches)
    expected = [
        (part, f"{path}.branches.{i}.{j}")
        for i, branch in enumerate(plan.branches)
        for j, part in enumerate(branch)
        if isinstance(part, Plan)
    ]
    assert len(block.inner) == len(expected)
    for inner, (part, name) in zip(block.inner, expected, strict=True):
        planned(inner, part, name)


def _weights(branch: tuple[Plan | str, ...], path: str) -> list[str]:
    names = []
    for index, part in enumerate(branch):
        if part == "weight":
            names.append(f"{path}.{index}")
        elif isinstance(part, Plan):
            names += [f"{path}.{index}.skip"] if part.projects else []
            for i, inner in enumerate(part.branches):
                names += _weights(inner, f"{path}.{index}.branches.{i}")
    return names


def _in_series(branch: tuple[Plan | str, ...]) -> int:
    return sum(
        max(_in_series(inner) for inner in part.branches) if isinstance(part, Plan) else part == "weight"
        for part in branch
    )


@given(st.lists(plans(), min_size=1, max_size=3))
@settings(deadline=None, max_examples=10)
def test_the_map_of_a_planned_network_is_its_plan(network: list[Plan]) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *map(Planned, network), nn.Linear(WIDTH, 2))
    found = residual_map(model, torch.randn(2, 3, WIDTH), strict=True)
    assert found.depth == len(network)
    assert found.stem == ("0",)
    assert found.classifier == f"{len(network) + 2}"
    for index, (block, plan) in enumerate(zip(found.blocks, network, strict=True)):
        planned(block, plan, str(index + 2))


@st.composite
def random_parents(draw: st.DrawFn) -> list[list[int]]:
    """For every node but the first, one or more earlier nodes."""
    size = draw(st.integers(2, 25))
    return [draw(st.lists(st.integers(0, node - 1), min_size=1, max_size=3, unique=True)) for node in range(1, size)]


@given(random_parents(), st.data())
@settings(deadline=None, max_examples=60)
def test_dominators_and_operations_between_two_are_those_of_networkx(
    parents: list[list[int]], data: st.DataObject
) -> None:
    flow = Dataflow([Operation("input"), *(Operation("relu", tuple(sources)) for sources in parents)])
    oracle = networkx.DiGraph((source, index + 1) for index, sources in enumerate(parents) for source in sources)
    expected = {node: dominator for node, dominator in networkx.immediate_dominators(oracle, 0).items() if node != 0}
    assert flow.dominators[0] is None
    assert {index: flow.dominators[index] for index in range(1, len(flow))} == expected
    start = data.draw(st.integers(0, len(parents) - 1))
    end = data.draw(st.integers(start, len(parents)))
    on_paths = networkx.descendants(oracle, start) & (networkx.ancestors(oracle, end) | {end})
    assert flow.between(start, end) == sorted(on_paths)
    assert flow.depends(end, start) == networkx.has_path(oracle, start, end)
