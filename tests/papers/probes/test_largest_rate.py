"""The largest stable rate, where theory says what it is."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless_papers.probes.divergence import largest_stable_rate


class Parabola(nn.Module):
    """λw², whose gradient descent is stable for rates up to 1/λ."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        return self.curvature * (self.w * x).square()


ONE = torch.ones(1, dtype=torch.float64)


def value(y: Tensor, _: Tensor) -> Tensor:
    return y.mean()


def plain_sgd(model: nn.Module, rate: float) -> Optimizer:
    return SGD(model.parameters(), lr=rate)


@settings(max_examples=12, deadline=None)
@given(st.floats(-3, 2.5), st.floats(1.05, 3), st.floats(-4, 3))
def test_the_limit_of_a_parabola_is_found_to_the_resolution(power: float, resolution: float, start: float) -> None:
    curvature = 10**power
    found = largest_stable_rate(
        Parabola(curvature), [(ONE, ONE)], plain_sgd, steps=200, start=10**start, resolution=resolution, loss=value
    )
    # After 200 steps a rate a little above the limit has not passed 10³ yet.
    assert found.largest <= 1 / curvature * 1.05
    assert found.smallest_diverging >= 1 / curvature
    assert found.largest < found.smallest_diverging <= resolution * found.largest * (1 + 1e-6)
    held = found.trials[~found.trials["diverged"]]
    assert held["rate"].max() == found.largest
    assert (held["steps"] == 200).all()
    assert (found.trials[found.trials["diverged"]]["last_loss"] > 1e3).all()
