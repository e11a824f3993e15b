"""Positively homogeneous functions and sets: found in real networks, exact where theory says so."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless import residual_map
from normless_papers.theory.parameter_sets import (
    candidate_sets,
    homogeneous_sets,
    input_homogeneity,
)

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_the_structure_is_read_from_any_network() -> None:
    """A block with a layer on its skip path: the layers around it are a homogeneous set, its branch is not."""
    network = nn.Sequential(nn.Linear(6, 6, bias=False), Projected(), nn.Linear(6, 2, bias=False))
    inputs = torch.randn(3, 6)
    names = {members.name for members in candidate_sets(residual_map(network, inputs), single=False)}
    assert len(names) == 3
    table = homogeneous_sets(network, inputs)
    assert table.loc[table["place"] == "projection", "homogeneous"].all()
    assert not table.loc[table["place"].isin(["branch", "skip"]), "homogeneous"].any()


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.skip, self.left = (nn.Linear(6, 6, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + torch.relu(self.left(x))


@settings(max_examples=10, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    factor=st.floats(0.01, 100),
    batch=st.integers(1, 4),
)
def test_plain_relu_networks_of_any_shape_are_homogeneous(widths: list[int], factor: float, batch: int) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip([3, *widths], widths, strict=False):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.LeakyReLU(0.1)]
    network = nn.Sequential(*layers)
    assert input_homogeneity(network, torch.randn(batch, 3), factors=[factor])["homogeneous"].all()
