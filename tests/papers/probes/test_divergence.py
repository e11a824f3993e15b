"""The diverging update and the largest stable rate, where they are known in closed form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless_papers.probes.divergence import Descent, find_divergence, largest_stable_rate, loss_along

ONE = torch.ones(1, dtype=torch.float64)


class Parabola(nn.Module):
    """λw², which gradient descent minimizes by w ← (1 - 2λη)w, stable for rates up to 1/λ."""

    def __init__(self, curvature: float, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.curvature = curvature

    def forward(self, x: Tensor) -> Tensor:
        return self.curvature * (self.w * x).square()


def value(y: Tensor, _: Tensor) -> Tensor:
    return y.mean()


def plain_sgd(model: nn.Module, rate: float) -> Optimizer:
    return SGD(model.parameters(), lr=rate)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 20), st.floats(1.05, 4))
def test_on_a_parabola_the_update_is_that_of_the_closed_form(start: float, rate: float) -> None:
    """The loss of step k is w₀²(1 - 2η)^(2k)."""
    expected = [start**2 * (1 - 2 * rate) ** (2 * k) for k in range(60)]
    step = next((k for k, loss in enumerate(expected) if loss > 1e3), None)
    found = find_divergence(Parabola(1.0, start), [(ONE, ONE)] * 60, rate, plain_sgd, loss=value)
    if step is None:
        assert (found.diverged, found.update, len(found.losses)) == (False, None, 60)
        return
    update = found.update
    assert found.diverged
    assert found.losses == pytest.approx(expected[: step + 1])
    assert update is not None
    assert update.step == step
    before = start * (1 - 2 * rate) ** (step - 1)
    assert update.model.get_parameter("w").item() == pytest.approx(before)
    assert float(update.direction["w"]) == pytest.approx(-2 * rate * before)
    along = loss_along(update.model, update.inputs, update.targets, update.direction, [0.0, 1.0], loss=value)
    assert along["loss"].tolist() == pytest.approx([expected[step - 1], expected[step]])


def test_a_network_that_starts_beyond_the_limit_has_no_update() -> None:
    for start in (1e6, float("nan")):
        found = find_divergence(Parabola(1.0, start), [(ONE, ONE)] * 3, 0.1, plain_sgd, loss=value)
        assert (found.diverged, len(found.losses), found.update) == (True, 1, None)
    assert find_divergence(Parabola(1.0, 1.0), [], 0.1, plain_sgd, loss=value) == Descent((), diverged=False)
    assert find_divergence(Parabola(1.0, 3.0), [(ONE, ONE)], 0.1, plain_sgd, loss=value, limit=8.0).diverged


@settings(max_examples=3, deadline=None)
@given(st.floats(-3, 2.5), st.floats(1.05, 3), st.floats(-4, 3))
def test_the_limit_of_a_parabola_is_found_to_the_resolution(power: float, resolution: float, start: float) -> None:
    curvature = 10**power
    given_data = {"steps": 200, "start": 10**start, "resolution": resolution, "loss": value}
    found = largest_stable_rate(Parabola(curvature, 1.0), [(ONE, ONE)], plain_sgd, **given_data)  # type: ignore[arg-type]
    # After 200 steps a rate a little above the limit has not passed 10³ yet.
    assert found.largest <= 1 / curvature * 1.05
    assert found.smallest_diverging >= 1 / curvature
    assert found.largest < found.smallest_diverging <= resolution * found.largest * (1 + 1e-6)
    held = found.trials[~found.trials["diverged"]]
    assert held["rate"].max() == found.largest
    assert (held["steps"] == 200).all()
    assert (found.trials[found.trials["diverged"]]["last_loss"] > 1e3).all()
