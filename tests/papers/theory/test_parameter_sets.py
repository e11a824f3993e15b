"""Positively homogeneous functions and sets: found in real networks, exact where theory says so."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless import convert, residual_map
from normless.models import resnet_cifar, wide_resnet
from normless_papers.theory.parameter_sets import (
    candidate_sets,
    homogeneous_sets,
    input_homogeneity,
)

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_fixup_proposition_1_bias_free_networks_are_homogeneous_and_norms_or_biases_break_it() -> None:
    """fixup/proposition-1: f(a x) = a f(x) to rounding error without norms and biases; not with either."""
    bare = convert(resnet_cifar(20), "xavier")
    table = input_homogeneity(bare, IMAGES, factors=(0.5, 2.0, 3.0, 0.7))
    assert table["homogeneous"].all()
    # Scaling by a power of two does not round at all.
    assert (table["relative_error"][:2] == 0).all()
    assert (table["relative_error"] < 1e-5).all()
    normalized = input_homogeneity(resnet_cifar(20), IMAGES)
    assert not normalized["homogeneous"].any()
    assert (normalized["relative_error"] > 0.5).all()
    biased = convert(resnet_cifar(20), "xavier")
    with torch.no_grad():
        biased.blocks[1].conv1.bias = nn.Parameter(torch.full((16,), 0.1))
    assert not input_homogeneity(biased, IMAGES)["homogeneous"].any()


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6, bias=False)
        self.skip = nn.Linear(6, 6, bias=False)
        self.left = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU())
        self.right = nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out: Tensor = self.head(self.skip(x) + self.left(x))
        return out


def test_the_structure_is_read_from_any_network() -> None:
    network = TwoBranches()
    inputs = torch.randn(3, 6)
    names = {members.name for members in candidate_sets(residual_map(network, inputs), single=False)}
    assert len(names) == 3
    table = homogeneous_sets(network, inputs)
    assert table.loc[table["place"] == "projection", "homogeneous"].all()
    assert not table.loc[table["place"].isin(["branch", "skip"]), "homogeneous"].any()


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


def test_dropout_draws_the_same_for_every_pass() -> None:
    network = convert(wide_resnet(10, 1), "zeroinit(multiplier=False)").eval()
    nn.init.zeros_(network.classifier.bias)
    assert input_homogeneity(network, IMAGES, training=True)["homogeneous"].all()
