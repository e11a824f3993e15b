"""Shattered gradients: measured against autograd per example and the law of wide ReLU networks."""

from __future__ import annotations

from itertools import combinations
from math import acos, pi, sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from normless import convert
from normless.models import dense, resnet_cifar
from normless_papers.probes.gradient_correlation import gradient_correlation_table

IMAGES = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


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
    cosines = [1.0]
    for factor in reversed(factors):
        cosines.append(cosines[-1] * factor)
    return cosines[::-1]


@pytest.mark.parametrize(("multiplier", "relus"), [(1.0, 1), (0.5, 2)])
def test_the_law_of_wide_networks(multiplier: float, relus: int) -> None:
    """Mean over three draws of a dense network of 400 units and 12 blocks, within 0.08 of the law at every block."""
    measured, predicted = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        network = convert(dense(12, 400, in_features=200, branch_layers=relus), f"skipinit(alpha={multiplier})")
        inputs = torch.randn(8, 200)
        with torch.no_grad():
            stem = F.normalize(network.stem(inputs))
        start = float(np.mean([float(stem[i] @ stem[j]) for i, j in combinations(range(8), 2)]))
        measured.append(gradient_correlation_table(network, inputs)["cosine"])
        predicted.append(predicted_gradient_cosines(12, start=start, relus=relus, multiplier=multiplier))
    assert np.abs(np.mean(measured, axis=0) - np.mean(predicted, axis=0)).max() < 0.08
    assert predicted[0][0] < 0.6


def test_examples_of_a_normalized_batch_are_measured_within_it() -> None:
    table = gradient_correlation_table(resnet_cifar(8), IMAGES, torch.arange(8))
    assert table["pairs"].tolist() == [28] * 4
