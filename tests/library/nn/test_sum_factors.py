"""The factors of a residual sum's two sides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normless.nn import ResidualSum


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
