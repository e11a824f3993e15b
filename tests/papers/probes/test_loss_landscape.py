"""The loss along a direction, against losses whose shape is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from cifar_like import BARE, NORMALIZED, batches, resnet110
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normless.models import wide_resnet
from normless.probes import probe
from normless.probes.moments import LogitGradients
from normless_papers.probes.divergence import momentum_sgd
from normless_papers.probes.loss_landscape import loss_along, moments_along, moved, observe_along, steepest_descent


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


def test_steepest_descent_is_a_step_of_sgd() -> None:
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    direction = steepest_descent(model, x, targets)
    told = loss_along(model, x, targets, direction, [0.0, 0.05])
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.05)
    before = F.cross_entropy(model(x), targets)
    before.backward()
    optimizer.step()
    after = F.cross_entropy(model(x), targets)
    assert told["loss"].tolist() == pytest.approx([before.item(), after.item()], rel=1e-4)
    slope = sum(float(part.square().sum()) for part in direction.values())
    assert told["predicted_loss"][1] == pytest.approx(before.item() - 0.05 * slope, rel=1e-4)


def test_a_moved_network_comes_back_bit_for_bit_whatever_happens() -> None:
    model = wide_resnet(10, 1).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    direction = {"stem.weight": torch.full_like(model.stem.weight, torch.nan)}

    def fail() -> None:
        with moved(model, direction, 1.0):
            assert model.stem.weight.isnan().all()
            raise RuntimeError("in the body")

    with pytest.raises(RuntimeError, match="in the body"):
        fail()
    x, targets, state = torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,)), torch.get_rng_state()
    everywhere = steepest_descent(model, x, targets)
    loss_along(model, x, targets, everywhere, [0.1, 1e30])
    observe_along(model, LogitGradients(), x, targets, everywhere, [0.1])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training
    assert torch.equal(state, torch.get_rng_state())


def test_a_direction_of_another_network_is_refused() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2)
    with (
        pytest.raises(ValueError, match=r"no parameter 'other'.*it has weight, bias"),
        moved(model, {"other": torch.ones(1)}, 1.0),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"direction of bias has the shape \(3,\), the parameter \(2,\)"),
        moved(model, {"bias": torch.ones(3)}, 1.0),
    ):
        pass
    with pytest.raises(ValueError, match="no trainable parameter 'other'"):
        loss_along(model, x, y, {"other": torch.ones(1)}, [0.0], loss=F.mse_loss)
    with pytest.raises(ValueError, match=r"direction of bias has the shape \(3,\)"):
        loss_along(model, x, y, {"bias": torch.ones(3)}, [0.0], loss=F.mse_loss)
    with pytest.raises(ValueError, match="This Linear has no trainable parameter"):
        loss_along(model.requires_grad_(False), x, y, {}, [0.0], loss=F.mse_loss)


def test_dropout_draws_alike_at_every_point() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Dropout(0.5), nn.Linear(20, 2))
    x, y = torch.randn(8, 20), torch.randn(8, 2)
    table = loss_along(model, x, y, steepest_descent(model, x, y, loss=F.mse_loss), [0.0] * 5, loss=F.mse_loss)
    assert table["loss"].nunique() == 1
    assert table["predicted_loss"].tolist() == pytest.approx(table["loss"].tolist())


def test_moments_along_are_those_of_the_moved_network() -> None:
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    direction = steepest_descent(model, x, targets)
    table = moments_along(model, x, targets, direction, [0.0, 0.3])
    assert table["point"].unique().tolist() == [0.0, 0.3]
    with moved(model, direction, 0.3):
        expected = probe(model, x, ["activations"]).activations
    at = table[table["point"] == 0.3].reset_index(drop=True)
    np.testing.assert_allclose(at["variance"], expected["variance"])
    np.testing.assert_allclose(at["loss"], loss_along(model, x, targets, direction, [0.3])["loss"][0])
    assert moments_along(model, x, targets, direction, []).empty


def along_its_gradient(scheme: str, minibatch: int, rates: list[float]) -> pd.Series:
    """The loss of a minibatch of the training, the first being 1, along its own gradient, by rate."""
    data, model = batches(minibatch, 16, 16), resnet110(scheme)
    optimizer = momentum_sgd(model, {BARE: 1e-4, NORMALIZED: 0.1}[scheme])
    for x, targets in data[:-1]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), targets).backward()
        optimizer.step()
    x, targets = data[-1]
    along = loss_along(model, x, targets, steepest_descent(model, x, targets), [0.0, *rates])
    return along.set_index("point")["loss"]


def longest_useful_step(losses: pd.Series) -> float:
    """The largest rate tried that lowers the loss."""
    return float(losses[losses < losses[0.0]].index.max())


def test_understanding_bn_figure_24_first_minibatch_far_larger_steps_lower_the_loss_with_norm() -> None:
    """understanding-bn/figure-24: at the first minibatch far larger steps still decrease the loss with batch norm.

    Measured on 16 images of 16×16: up to the rate 0.016 with norm, up to 0.00016 without. On 32 CIFAR images of
    32×32 the lowest loss is at 0.02 and 0.00002.
    """
    bare = along_its_gradient(BARE, 1, [1e-5 * 4**power for power in range(6)])
    normalized = along_its_gradient(NORMALIZED, 1, [1e-3 * 4**power for power in range(6)])
    assert longest_useful_step(normalized) > 30 * longest_useful_step(bare)


def test_understanding_bn_figure_24_fifth_minibatch_only_the_norm_lands_safely() -> None:
    """understanding-bn/figure-24: at the fifth minibatch far larger steps still decrease the loss with batch norm.

    This does NOT hold at these sizes. Trained at the paper's rates 0.1 and 0.0001 on batches of 16, the longest step
    that lowers the loss is 0.01 to 0.04 with norm and 0.04 without; for seed 2 they are 0.7 and 0.04, on 32 CIFAR
    images of 32×32 they are 0.16 and 0.04. Four steps have shrunk the unnormalized network's outputs, and the
    gradient step shrinks them further, to the loss of chance. What does hold is what is behind that step: sixteen
    times as far the loss is beyond 10⁶ without norm, and no larger than some hundreds with it.
    """
    rates = [0.01, 0.04, 0.64]
    bare, normalized = (along_its_gradient(scheme, 5, rates) for scheme in (BARE, NORMALIZED))
    assert bare[0.01] < bare[0.0]
    assert normalized[0.01] < normalized[0.0]
    assert not bare[0.64] < 1e6
    assert normalized[0.64] < 1e3
