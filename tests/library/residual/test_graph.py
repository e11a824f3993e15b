"""Dominators and paths of dataflow graphs against networkx, on random graphs."""

from __future__ import annotations

import networkx
from hypothesis import given, settings
from hypothesis import strategies as st

from normless.residual.graph import Dataflow, Operation


@st.composite
def random_parents(draw: st.DrawFn) -> list[list[int]]:
    """For every node but the first, one or more earlier nodes."""
    size = draw(st.integers(2, 25))
    return [draw(st.lists(st.integers(0, node - 1), min_size=1, max_size=3, unique=True)) for node in range(1, size)]


@given(random_parents(), st.data())
@settings(deadline=None, max_examples=200)
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
