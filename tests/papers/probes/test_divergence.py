"""The loss along a direction, the diverging update and the largest stable rate, where they are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.models import wide_resnet
from normless.probes import probe
from normless_papers.probes.divergence import (
    Descent,
    find_divergence,
    largest_stable_rate,
    loss_along,
    moments_along,
    steepest_descent,
)

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


@settings(max_examples=3, deadline=None)
@given(st.floats(-3, 2.5), st.floats(-4, 3))
def test_the_limit_of_a_parabola_is_found_to_a_factor_of_2(power: float, start: float) -> None:
    curvature = 10**power
    model = Parabola(curvature, 1.0)
    found = largest_stable_rate(model, [(ONE, ONE)] * 200, plain_sgd, start=10**start, loss=value)
    # After 200 steps a rate a little above the limit has not passed 10³ yet.
    assert found.largest <= 1 / curvature * 1.05
    assert found.smallest_diverging >= 1 / curvature
    assert found.largest < found.smallest_diverging <= 2 * found.largest * (1 + 1e-6)
    held = found.trials[~found.trials["diverged"]]
    assert held["rate"].max() == found.largest
    assert (held["steps"] == 200).all()
    assert (found.trials[found.trials["diverged"]]["last_loss"] > 1e3).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.floats(-2, 2), st.integers(0, 10**6))
def test_a_quadratic_loss_is_a_parabola_and_its_prediction_the_tangent(
    examples: int, width: int, point: float, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(width, 2).double()
    x, y = torch.randn(examples, width, dtype=torch.float64), torch.randn(examples, 2, dtype=torch.float64)
    direction = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    table = loss_along(model, x, y, direction, [0.0, point], loss=F.mse_loss)
    with torch.no_grad():
        error = model(x) - y
        change = x @ direction["weight"].T + direction["bias"]
    expected = (error + point * change).square().mean()
    tangent = error.square().mean() + point * 2 * (error * change).mean()
    assert table["loss"][0] == pytest.approx(float(error.square().mean()))
    assert table["loss"][1] == pytest.approx(float(expected), abs=1e-12)
    assert table["predicted_loss"][1] == pytest.approx(float(tangent), abs=1e-12)


def test_steepest_descent_is_a_step_of_sgd_and_moments_are_those_of_the_moved_network() -> None:
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    direction = steepest_descent(model, x, targets)
    table = loss_along(model, x, targets, direction, [0.0, 0.05])
    moments = moments_along(model, x, targets, direction, [0.0, 0.05])
    assert moments_along(model, x, targets, direction, []).empty
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.05)
    before = F.cross_entropy(model(x), targets)
    before.backward()
    optimizer.step()
    after = F.cross_entropy(model(x), targets)
    assert table["loss"].tolist() == pytest.approx([before.item(), after.item()], rel=1e-4)
    slope = sum(float(part.square().sum()) for part in direction.values())
    assert table["predicted_loss"][1] == pytest.approx(before.item() - 0.05 * slope, rel=1e-4)
    assert moments["point"].unique().tolist() == [0.0, 0.05]
    at = moments[moments["point"] == 0.05]
    np.testing.assert_allclose(at["variance"], probe(model, x, ["activations"]).activations["variance"], rtol=1e-4)
    np.testing.assert_allclose(at["loss"], table["loss"][1])
