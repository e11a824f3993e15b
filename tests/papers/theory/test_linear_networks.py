"""Training one layer of a linear network is solving linear systems; what their condition does to descent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normless_papers.theory.gradient_descent import descent_table
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
    torch.testing.assert_close(systems.weight(variables), weights[layer], rtol=1e-6, atol=1e-8)

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


@pytest.mark.parametrize(("part", "stable"), [(0.99, True), (1.01, False)])
def test_a_layer_with_white_inputs_has_the_stable_step_of_its_systems(part: float, stable: bool) -> None:
    weights = [torch.randn(8, 8, dtype=torch.float64) for _ in range(3)]
    inputs = torch.linalg.qr(torch.randn(20, 8, dtype=torch.float64))[0].T
    targets = torch.randn(8, 20, dtype=torch.float64)
    systems = linear_systems(weights, 0, inputs, targets)
    limit = float(torch.linalg.svdvals(systems.matrix)[0]) ** -2
    first = weights[0].clone().requires_grad_()
    losses = []
    for _ in range(600):
        loss = network_loss([first, *weights[1:]], inputs, targets)
        (gradient,) = torch.autograd.grad(loss, first)
        first = (first - part * limit * gradient).detach().requires_grad_()
        losses.append(float(loss.detach()))
    assert (losses[-1] < losses[0]) is stable
    assert (losses[-1] < losses[-2]) is stable


def test_systems_that_extremes_alone_make_take_exactly_the_predicted_steps() -> None:
    matrix = torch.diag(torch.tensor([5.0, 1.0]))
    table = descent_table([matrix, torch.eye(3)], reduction=1e-4)
    assert table["steps"].tolist() == table["predicted_steps"].tolist()
    assert table["steps"][1] == 1
    assert descent_table([matrix], reduction=1e-4, max_steps=3)["steps"].isna().all()
