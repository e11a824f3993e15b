"""The residual sum as a module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normless.nn import ResidualSum

SHAPE = (4, 3, 2, 2)


@pytest.fixture
def paths() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(SHAPE), torch.randn(SHAPE)


def test_a_plain_sum_is_the_addition_bit_for_bit(paths) -> None:
    skip, branch = paths
    total = ResidualSum()
    assert torch.equal(total(skip, branch), skip + branch)
    assert total.is_plain
    assert list(total.state_dict()) == []
    assert repr(total).startswith("ResidualSum(")
    assert total.extra_repr() == ""


def test_a_factor_multiplies_the_total(paths) -> None:
    skip, branch = paths
    total = ResidualSum()
    total.factor = 0.5
    assert torch.equal(total(skip, branch), (skip + branch) * 0.5)
    assert not total.is_plain
    assert total.extra_repr() == "factor=0.5"


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), SHAPE])
def test_a_multiplier_multiplies_the_branch_alone(shape: tuple[int, ...], size: int) -> None:
    torch.manual_seed(0)
    skip, branch = torch.randn(shape), torch.randn(shape)
    total = ResidualSum()
    total.multiplier = nn.Parameter(torch.randn(size))
    expected = torch.stack([skip[:, c] + total.multiplier[c % size] * branch[:, c] for c in range(3)], dim=1)
    actual = total(skip, branch)
    torch.testing.assert_close(actual, expected)
    direction = torch.randn(shape)
    torch.testing.assert_close(
        torch.autograd.grad(actual, total.multiplier, direction),
        torch.autograd.grad(expected, total.multiplier, direction),
    )
    assert not total.is_plain
    assert total.extra_repr() == "multiplier"


def test_a_norm_on_the_skip_path_sees_the_skip_path_alone(paths) -> None:
    skip, branch = paths
    total = ResidualSum()
    total.norm_skip = nn.BatchNorm2d(3)
    torch.testing.assert_close(total(skip, branch), nn.BatchNorm2d(3)(skip) + branch)


def test_a_norm_behind_sees_the_scaled_total(paths) -> None:
    skip, branch = paths
    total = ResidualSum()
    total.factor = 3.0
    total.norm_total = nn.GroupNorm(1, 3)
    torch.testing.assert_close(total(skip, branch), nn.GroupNorm(1, 3)((skip + branch) * 3.0))
    assert not total.is_plain


@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("branch_factor", [1.0, 0.2])
@pytest.mark.parametrize("skip_factor", [1.0, 1.7])
def test_each_side_is_multiplied_by_its_own(skip_factor: float, branch_factor: float, factor: float) -> None:
    skip, branch = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    total = ResidualSum()
    total.skip_factor, total.branch_factor, total.factor = skip_factor, branch_factor, factor
    total.multiplier = nn.Parameter(torch.tensor([0.3]))
    expected = factor * (skip_factor * skip + branch_factor * 0.3 * branch)
    torch.testing.assert_close(total(skip, branch), expected)


def test_a_branch_of_zeros_leaves_the_skip_path_bit_for_bit() -> None:
    skip = torch.randn(4, 3)
    total = ResidualSum()
    total.branch_factor = 0.2
    assert torch.equal(total(skip, torch.zeros(4, 3)), skip)
