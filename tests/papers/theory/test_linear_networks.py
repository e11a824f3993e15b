"""Training one layer of a linear network is solving linear systems."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from normless_papers.theory.linear_networks import linear_systems


def network_loss(weights: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    output = inputs
    for weight in weights:
        output = weight @ output
    return (output - targets).square().sum()


@settings(max_examples=40, deadline=None)
@given(*[st.integers(1, 4)] * 2, *[st.integers(0, 3)] * 3, st.integers(0, 999))
def test_understanding_bn_proposition_1_reduction(
    features: int, width: int, spare: int, wider: int, layer: int, seed: int
) -> None:
    """understanding-bn/proposition-1: same minimum up to C, and columns that decouple."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    outputs = width + wider
    shapes = [(features, features)] * layer + [(width, features), (outputs, width), (outputs, outputs)]
    weights, samples = [draw(*shape) for shape in shapes], features + spare
    inputs, targets = draw(features, samples), draw(outputs, samples)
    systems = linear_systems(weights, layer, inputs, targets)
    loss = network_loss(weights, inputs, targets)
    variables = systems.variables(weights[layer])
    losses = systems.column_losses(variables)
    torch.testing.assert_close(losses.sum() + systems.constant, loss, rtol=1e-9, atol=1e-9)

    moved = variables.clone()
    moved[:, 0] += 1.0
    torch.testing.assert_close(systems.column_losses(moved)[1:], losses[1:])

    entering = inputs
    for weight in weights[:layer]:
        entering = weight @ entering
    design = np.kron(systems.matrix.numpy(), entering.T.numpy())
    solution = np.linalg.lstsq(design, targets.numpy().ravel())[0]
    least = np.square(design @ solution - targets.numpy().ravel()).sum()
    assert systems.minimum() == pytest.approx(least, rel=1e-6, abs=1e-9)
