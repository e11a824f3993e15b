"""The loss along a direction, against losses whose shape is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normless.models import wide_resnet
from normless.probes import probe
from normless_papers.probes.divergence import loss_along, moments_along, steepest_descent


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
