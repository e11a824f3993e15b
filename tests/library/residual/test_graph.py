"""Dominators against networkx, on random graphs; the map of foreign networks; what tracing leaves alone."""

from __future__ import annotations

import networkx
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from written_networks import Written

from normless import residual_map
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


def functional(m: Written, x: Tensor) -> Tensor:
    """In the style of many scripts: functional activations, an in-place sum, the sum at the root."""
    x = m.stem(x) + m.position
    h = m.conv2(torch.relu(m.conv1(x)))
    x += m.dropout(h)
    h = torch.relu(m.conv1(x))
    return m.fc(x.mean((2, 3)) + h.mean((2, 3)))


def test_functional_code_is_read_and_bias_additions_are_no_blocks() -> None:
    convolutions = {
        name: nn.Conv2d(3 if name == "stem" else 8, 8, 3, padding=1) for name in ("stem", "conv1", "conv2")
    }
    rest = {"position": nn.Parameter(torch.zeros(1, 8, 1, 1)), "dropout": nn.Dropout(0.5), "fc": nn.Linear(8, 5)}
    found = residual_map(Written(functional, **convolutions, **rest), torch.zeros(2, 3, 8, 8))
    assert found.blocks[0].branch == ("conv1", "conv2")
    assert found.blocks[0].identity_skip
    assert found.blocks[0].sum is None
    assert found.blocks[0].activations[0].startswith(":relu")
    assert found.stem == ("stem",)
    assert found.classifier == "fc"


def test_networks_without_residual_sums_have_no_blocks() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = residual_map(plain, torch.zeros(1, 4))
    assert found.depth == 0
    assert found.stem == ("0", "2")
    assert found.classifier == "2"
