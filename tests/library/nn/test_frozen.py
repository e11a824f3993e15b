"""The frozen affine map against torch's batch norm in eval mode, and against the formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normless.nn import FrozenAffine


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (4, 3, 5, 2, 2)])
def test_it_is_a_batch_norm_whose_statistics_stand_still(shape: tuple[int, ...]) -> None:
    x, mean, variance = torch.randn(shape), torch.randn(3), torch.rand(3) + 0.5
    scale = 1 / (variance + 1e-5).sqrt()
    affine = FrozenAffine(scale, -mean * scale)
    expected = F.batch_norm(x, mean, variance, eps=1e-5)
    torch.testing.assert_close(affine(x), expected)
    assert torch.equal(affine.train()(x), affine.eval()(x))


def test_what_comes_behind_keeps_its_name_and_runs_in_order() -> None:
    affine = FrozenAffine(torch.tensor([2.0]), torch.tensor([-1.0]), {"linear": nn.Linear(1, 1), "act": nn.ReLU()})
    nn.init.constant_(affine.linear.weight, -2.0)
    nn.init.constant_(affine.linear.bias, 0.5)
    # 2x − 1 = 3, −1; × −2 + 0.5 = −5.5, 2.5; ReLU.
    torch.testing.assert_close(affine(torch.tensor([[2.0], [0.0]])), torch.tensor([[0.0], [2.5]]))
    assert list(affine.state_dict()) == ["scale", "shift", "linear.weight", "linear.bias"]


def test_nothing_of_it_is_trained_and_the_gradient_passes() -> None:
    affine = FrozenAffine(torch.tensor([2.0, -3.0]), torch.ones(2))
    assert list(affine.parameters()) == []
    x = torch.randn(4, 2, 3, requires_grad=True)
    affine(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([2.0, -3.0]).reshape(1, 2, 1).expand(4, 2, 3))
