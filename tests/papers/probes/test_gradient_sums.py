"""Gradient sums, correlations and gradients of single examples, against autograd and laws."""

from __future__ import annotations

from itertools import combinations
from math import acos, pi, sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from measured import measured
from torch import Tensor

from normless import convert
from normless.models import dense, wide_resnet
from normless_papers.probes.sgd_noise import per_example_gradients
from normless_papers.probes.summand_tables import GradientSums
from normless_papers.probes.training_signals import gradient_correlation_table


@pytest.mark.parametrize("scheme", ["batch_norm", "none", "zeroinit(multiplier=False, dropout=0)"])
def test_every_layer_has_the_gradient_of_autograd(scheme: str) -> None:
    model = convert(wide_resnet(10, 1), scheme).train()
    inputs, targets = torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4])
    table = measured(GradientSums(), model, inputs, targets)
    weights = {name: value for name, value in model.named_parameters() if value.dim() > 1}
    found = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(weights.values()))
    exact = {name.removesuffix(".weight"): gradient for name, gradient in zip(weights, found, strict=True)}
    assert set(table["layer"]) == set(exact)
    assert table["order"].tolist() == list(range(1, len(exact) + 1))
    count = table["examples"] * table["positions"]
    gradients = [exact[layer] for layer in table["layer"]]
    assert table["parameters"].tolist() == [gradient.numel() for gradient in gradients]
    sizes = np.array([float(gradient.abs().mean()) for gradient in gradients])
    np.testing.assert_allclose(table["abs_sum"], sizes / count, rtol=1e-3)
    np.testing.assert_allclose(table["predicted_for_random_signs"], count**-0.5)


def predicted_gradient_cosines(depth: int, start: float, relus: int, multiplier: float) -> list[float]:
    """The cosine of two examples' gradients after the stem and after each block of a wide residual network of ReLUs.

    With branches that keep the variance, a multiplier α and the examples' cosine `start` before the first block, the
    cosine ρ between activations and the cosine c between gradients change in a block as

        ρ' = (ρ + α² κ₁(κ₁(…ρ)))/(1 + α²),    c = c' · (1 + α² Π_i κ₀(ρ_i))/(1 + α²),
        κ₀(ρ) = 1 − arccos(ρ)/π,              κ₁(ρ) = (√(1 − ρ²) + ρ(π − arccos ρ))/π,

    with the cosine ρ_i before the i-th of the branch's ReLUs.
    """
    activations, gain = start, multiplier**2
    factors: list[float] = []
    for _ in range(depth):
        branch, both_pass = activations, 1.0
        for _ in range(relus):
            angle = acos(min(max(branch, -1.0), 1.0))
            both_pass *= 1 - angle / pi
            branch = (sqrt(max(1 - branch**2, 0.0)) + branch * (pi - angle)) / pi
        factors.append((1 + gain * both_pass) / (1 + gain))
        activations = (activations + gain * branch) / (1 + gain)
    return np.cumprod([1.0, *reversed(factors)])[::-1].tolist()


@pytest.mark.parametrize(("multiplier", "relus"), [(1.0, 1), (0.5, 2)])
def test_the_law_of_wide_networks(multiplier: float, relus: int) -> None:
    """Mean over three draws of a dense network of 400 units and 12 blocks, within 0.08 of the law at every block."""
    tables, predicted = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        network = convert(dense(12, 400, in_features=200, branch_layers=relus), f"skipinit(alpha={multiplier})")
        inputs = torch.randn(8, 200)
        with torch.no_grad():
            stem: Tensor = F.normalize(network.stem(inputs))
        start = float(np.mean([float(stem[i] @ stem[j]) for i, j in combinations(range(8), 2)]))
        tables.append(gradient_correlation_table(network, inputs)["cosine"])
        predicted.append(predicted_gradient_cosines(12, start=start, relus=relus, multiplier=multiplier))
    assert np.abs(np.mean(tables, axis=0) - np.mean(predicted, axis=0)).max() < 0.08
    assert predicted[0][0] < 0.6


def images(examples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(examples, 3, 8, 8), torch.randint(10, (examples,))


def test_per_example_gradients_are_those_of_backward_passes_one_by_one() -> None:
    network, (inputs, targets) = wide_resnet(10, 1), images(5)
    next(network.parameters()).requires_grad_(False)
    found = per_example_gradients(network, inputs, targets, F.cross_entropy, chunk=2)
    network.eval()
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for index, gradient in enumerate(found):
        loss = F.cross_entropy(network(inputs[index : index + 1]), targets[index : index + 1])
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, trainable)])
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)
