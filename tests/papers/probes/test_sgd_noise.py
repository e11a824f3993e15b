"""The noise of minibatch steps: every minibatch there is, against α²M/|B|."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from normless.models import wide_resnet
from normless_papers.probes.sgd_noise import noise_per_example, per_example_gradients, step_errors


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.floats(0.01, 2), st.integers(0, 999))
def test_understanding_bn_equation_2_over_every_minibatch(examples: int, size: int, rate: float, seed: int) -> None:
    """understanding-bn/equation-2: unbiased, and the squared error is exactly α²M/|B|."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs, targets = torch.randn(examples, 3, dtype=torch.float64), torch.randint(3, (examples,))
    every = torch.tensor(list(product(range(examples), repeat=size)))
    errors = step_errors(network, inputs, targets, F.cross_entropy, every, rate)
    noise = noise_per_example(per_example_gradients(network, inputs, targets, F.cross_entropy))
    assert errors.mean_square == pytest.approx(rate**2 * noise / size, rel=1e-9, abs=1e-25)
    assert errors.bias == pytest.approx(0, abs=1e-12)


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
