"""The residual sum and each of its parts against the formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normless.nn import ResidualSum

SKIP, BRANCH = torch.randn(2, 4, 3, 2, 2, generator=torch.Generator().manual_seed(0))


def test_each_side_is_multiplied_by_its_own_factor() -> None:
    total = ResidualSum()
    total.skip_factor, total.branch_factor, total.factor = 1.7, 0.2, 0.5
    total.multiplier = nn.Parameter(torch.tensor([0.3]))
    torch.testing.assert_close(total(SKIP, BRANCH), 0.5 * (1.7 * SKIP + 0.2 * 0.3 * BRANCH))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2)])
def test_a_multiplier_multiplies_the_branch_alone(shape: tuple[int, ...], size: int) -> None:
    skip, branch, direction = torch.randn(3, *shape)
    total = ResidualSum()
    total.multiplier = nn.Parameter(torch.randn(size))
    expected = torch.stack([skip[:, c] + total.multiplier[c % size] * branch[:, c] for c in range(3)], dim=1)
    actual = total(skip, branch)
    torch.testing.assert_close(actual, expected)
    found, wanted = (torch.autograd.grad(one, total.multiplier, direction) for one in (actual, expected))
    torch.testing.assert_close(found, wanted)
    assert (total.is_plain, total.extra_repr()) == (False, "multiplier")
