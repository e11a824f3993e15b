"""Shattered gradients: measured against autograd per example and the law of wide ReLU networks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from normless import convert
from normless.models import dense, resnet_cifar, wide_resnet
from normless_papers.probes.gradient_correlation import (
    gradient_correlation_table,
    parameter_gradient_correlation,
    predicted_gradient_cosines,
)

IMAGES = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_zeroinit_linear_at_init_gradients_of_all_parameters() -> None:
    """zeroinit/linear-at-init: the same by the parameter gradients of one logit, at depth 100, in every draw.

    Of a logit and not of the cross entropy: without the multiplier the logits are as large as 2^L, the softmax is
    saturated, and where it is right the gradient is nought.
    """
    targets = torch.zeros(8, dtype=torch.long)
    whole: dict[str, list[float]] = {"zeroinit(dropout=0)": [], "none": []}
    for scheme, cosines in whole.items():
        for seed in range(5):
            torch.manual_seed(seed)
            network = convert(wide_resnet(100, 1), scheme)
            table = parameter_gradient_correlation(network, IMAGES, targets, loss=F.nll_loss)
            assert table["parameter"].iloc[-1] == "all"
            cosines.append(float(table["cosine"].iloc[-1]))
    kept, decayed = whole.values()
    assert min(kept) > 0.5
    assert max(decayed) < min(kept)
    assert np.mean(decayed) < 0.6 * np.mean(kept)


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


@settings(max_examples=10, deadline=None)
@given(size=st.integers(1, 5), depth=st.integers(1, 3), width=st.integers(2, 6))
def test_parameter_cosines_are_those_of_gradients_taken_one_by_one(size: int, depth: int, width: int) -> None:
    torch.manual_seed(size + 10 * depth)
    network = convert(dense(depth, width, 3, 4), "none").double()
    inputs, targets = torch.randn(size, 4).double(), torch.randint(3, (size,))
    table = parameter_gradient_correlation(network, inputs, targets)
    parameters = list(network.parameters())
    rows = []
    for example in range(size):
        loss = F.cross_entropy(network(inputs[[example]]), targets[[example]])
        rows.append(torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters)]))
    pairs = [float(F.cosine_similarity(a, b, dim=0)) for a, b in combinations(rows, 2)]
    assert table["pairs"].iloc[-1] == len(pairs)
    if pairs:
        assert table["cosine"].iloc[-1] == pytest.approx(float(np.mean(pairs)), abs=1e-9)
        assert table["absolute_cosine"].iloc[-1] == pytest.approx(float(np.mean(np.abs(pairs))), abs=1e-9)
    else:
        assert table["cosine"].isna().all()


def test_examples_of_a_normalized_batch_are_measured_within_it_and_nothing_is_left() -> None:
    network = resnet_cifar(8).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    table = parameter_gradient_correlation(network, IMAGES, torch.arange(8))
    assert table["pairs"].iloc[-1] == 28
    assert len(gradient_correlation_table(network, IMAGES, torch.arange(8))) == 4
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
