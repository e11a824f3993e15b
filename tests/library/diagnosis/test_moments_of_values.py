"""Moments of a tensor as the recording of a pass notes them, by the law of total variance."""

from __future__ import annotations

from math import isnan

import pytest
import torch

from normless.diagnosis.tape import moments


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3), (6, 1), (6, 40, 30)])
def test_moments_are_those_of_all_values_and_of_the_values_of_each_feature(shape: tuple[int, ...]) -> None:
    x = 2 * torch.randn(shape) + 3 * torch.randn(shape[1:]) + 1
    found = moments(x, 6)
    between = x.double().var(0, correction=0).mean().item()
    assert found.second == pytest.approx(x.double().square().mean().item())
    assert found.spread == pytest.approx(between / x.double().var(correction=0).item())
    assert found.deviation == pytest.approx(between**0.5)


@pytest.mark.parametrize("x", [torch.randn(6), torch.randn(4, 5), torch.tensor(2.0)])
def test_other_tensors_have_the_second_moment_alone(x: torch.Tensor) -> None:
    found = moments(x, 6)
    assert found.second == pytest.approx(x.double().square().mean().item())
    assert isnan(found.spread)
    assert isnan(found.deviation)


def test_equal_examples_do_not_differ() -> None:
    found = moments(torch.full((6, 4), 1e6), 6)
    assert (found.spread, found.deviation) == (0.0, 0.0)
