"""The dataflow: dominators, paths, degrees of homogeneity, maps of random networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, log2

import networkx
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless import ResidualBlock, residual_map
from normless.residual.graph import Dataflow, Operation


@st.composite
def random_parents(draw: st.DrawFn) -> list[list[int]]:
    """For every node but the first, one or more earlier nodes."""
    size = draw(st.integers(2, 25))
    return [draw(st.lists(st.integers(0, node - 1), min_size=1, max_size=3, unique=True)) for node in range(1, size)]


@given(random_parents())
@settings(deadline=None, max_examples=200)
def test_immediate_dominators_are_those_of_networkx(parents: list[list[int]]) -> None:
    flow = Dataflow([Operation("input"), *(Operation("relu", tuple(sources)) for sources in parents)])
    oracle = networkx.DiGraph()
    oracle.add_node(0)
    for index, sources in enumerate(parents, start=1):
        oracle.add_edges_from((source, index) for source in sources)
    expected = {node: dominator for node, dominator in networkx.immediate_dominators(oracle, 0).items() if node != 0}
    assert flow.dominators[0] is None
    assert {index: flow.dominators[index] for index in range(1, len(flow))} == expected


@given(random_parents(), st.data())
@settings(deadline=None, max_examples=200)
def test_operations_between_two_are_those_on_the_paths_that_networkx_finds(
    parents: list[list[int]], data: st.DataObject
) -> None:
    flow = Dataflow([Operation("input"), *(Operation("relu", tuple(sources)) for sources in parents)])
    oracle = networkx.DiGraph((source, index + 1) for index, sources in enumerate(parents) for source in sources)
    start = data.draw(st.integers(0, len(parents) - 1))
    end = data.draw(st.integers(start, len(parents)))
    on_paths = networkx.descendants(oracle, start) & (networkx.ancestors(oracle, end) | {end})
    assert flow.between(start, end) == sorted(on_paths)
    assert flow.depends(end, start) == networkx.has_path(oracle, start, end)


class Functional(nn.Module):
    """A network in the style of many scripts: functional activations, an in-place sum, the sum at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.position = nn.Parameter(torch.zeros(1, 8, 1, 1))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) + self.position
        h = self.conv2(torch.relu(self.conv1(x)))
        x += self.dropout(h)
        h = torch.relu(self.conv1(x))
        return self.fc(x.mean((2, 3)) + h.mean((2, 3)))


def test_functional_code_is_read_and_bias_additions_are_no_blocks() -> None:
    found = residual_map(Functional(), torch.zeros(2, 3, 8, 8))
    assert found.blocks[0].branch == ("conv1", "conv2")
    assert found.blocks[0].identity_skip
    assert found.blocks[0].sum is None
    assert found.blocks[0].activations[0].startswith(":relu")
    assert found.stem == ("stem",)
    assert found.classifier == "fc"


class Gated(nn.Module):
    """A block whose branch ends in a gate, behind a norm that is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.inner = nn.Linear(6, 6)
        self.gate = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.inner(nn.functional.layer_norm(x, (6,)))
        return x + h * torch.sigmoid(self.gate(h))


def test_what_is_no_module_or_no_layer_is_told_apart() -> None:
    inputs = torch.randn(4, 6)
    block = residual_map(Gated(), inputs).blocks[0]
    assert block.branch == ("inner", "gate")
    assert not block.ends_in_layer
    assert block.norms[0].startswith(":layer_norm")


def test_zeroing_a_traced_branch_leaves_exactly_the_skip_path() -> None:
    model = torchvision.models.resnet18().eval()
    found = residual_map(model, torch.zeros(1, 3, 64, 64))
    block = found.blocks[1]
    for path in block.norms[-1:]:
        nn.init.zeros_(model.get_submodule(path).weight)
    x = torch.randn(2, 64, 8, 8)
    assert torch.equal(model.get_submodule(block.name)(x), torch.relu(x))


def test_networks_without_residual_sums_have_no_blocks() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = residual_map(plain, torch.zeros(1, 4))
    assert found.depth == 0
    assert found.stem == ("0", "2")
    assert found.classifier == "2"


RULES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "as it is": lambda w, g, u: w,
    "times a constant": lambda w, g, u: 0.1 * w,
    "unit rows": lambda w, g, u: F.normalize(w),
    "unit rows with a gain": lambda w, g, u: g * w / w.norm(dim=1, keepdim=True),
    "unit matrix": lambda w, g, u: w / torch.sqrt((w * w).sum()),
    "standardized": lambda w, g, u: (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True),
    "standardized by variance": lambda w, g, u: (w - w.mean(1, keepdim=True)) * torch.rsqrt(w.var(1, keepdim=True)),
    "by batch norm": lambda w, g, u: F.batch_norm(w.t()[None].mT.reshape(1, 5, -1), None, None, training=True)[0],
    "spectral": lambda w, g, u: w / torch.dot(F.normalize(w @ F.normalize(w.t() @ u, dim=0), dim=0), w @ u),
    "squared": lambda w, g, u: w * w,
    "product": lambda w, g, u: g * w,
    "largest": lambda w, g, u: w / w.abs().amax(),
    "absolute sum": lambda w, g, u: w / w.abs().sum(1, keepdim=True),
}


class Computed(nn.Module):
    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule
        self.w, self.g = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.rand(5, 1) + 0.5)
        self.register_buffer("u", torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.u, Tensor)
        return F.linear(x, RULES[self.rule](self.w, self.g, self.u))


def degrees(model: nn.Module, x: Tensor) -> dict[str, float]:
    flow = nl.residual_map(model, x).flow
    assert flow is not None
    (linear,) = (operation for operation in flow.operations if operation.name == "linear")
    return dict(linear.fixed[0].degrees)


def measured(model: nn.Module, x: Tensor, name: str) -> float:
    """log₂ of how the output grows where one parameter doubles."""
    before = model(x).detach()
    with torch.no_grad():
        model.get_parameter(name).mul_(2)
    after = model(x).detach()
    with torch.no_grad():
        model.get_parameter(name).div_(2)
    return log2(float((after / before).median()))


@pytest.mark.parametrize("rule", RULES)
def test_degrees_are_those_of_the_forward_pass(rule: str) -> None:
    torch.manual_seed(0)
    model, x = Computed(rule), torch.randn(3, 5)
    found = degrees(model, x)
    assert found
    for name, degree in found.items():
        assert degree == pytest.approx(measured(model, x, name), abs=1e-4), name


def test_what_is_not_homogeneous_is_unknown() -> None:
    class Exponential(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.exp() + self.weight)

    (degree,) = degrees(Exponential(5, 5, bias=False), torch.randn(3, 5)).values()
    assert isnan(degree)


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
@settings(deadline=None, max_examples=20)
def test_the_map_of_a_planned_network_is_its_plan(network: list[Plan]) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), *map(Planned, network), nn.Linear(WIDTH, 2))
    found = residual_map(model, torch.randn(2, 3, WIDTH), strict=True)
    assert found.depth == len(network)
    assert found.stem == ("0",)
    assert found.classifier == f"{len(network) + 2}"
    for index, (block, plan) in enumerate(zip(found.blocks, network, strict=True)):
        planned(block, plan, str(index + 2))
