"""The diverging update, where it is known in closed form."""

from __future__ import annotations

import pytest
import torch
from cifar_like import BARE, batches, resnet110
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from normless.models import wide_resnet
from normless_papers.probes.divergence import Descent, DivergingUpdate, find_divergence
from normless_papers.probes.loss_landscape import loss_along


class Point(nn.Module):
    """One number as a network."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def square(y: Tensor, _: Tensor) -> Tensor:
    return y.square().mean()


def plain_sgd(model: nn.Module, rate: float) -> Optimizer:
    return SGD(model.parameters(), lr=rate)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.5, 20), st.floats(1.05, 4))
def test_on_a_parabola_the_update_is_that_of_the_closed_form(start: float, rate: float) -> None:
    # w² is minimized by w ← (1 - 2η)w, so that the loss of step k is w₀²(1 - 2η)^(2k).
    unit = torch.ones(1, dtype=torch.float64)
    data = [(unit, unit)] * 60
    expected = [start**2 * (1 - 2 * rate) ** (2 * k) for k in range(60)]
    step = next((k for k, loss in enumerate(expected) if loss > 1e3), None)
    found = find_divergence(Point(start), data, rate, plain_sgd, loss=square)
    if step is None:
        assert not found.diverged
        assert found.update is None
        assert len(found.losses) == 60
        return
    assert found.diverged
    assert found.losses == pytest.approx(expected[: step + 1])
    update = found.update
    assert update is not None
    assert update.step == step
    before = start * (1 - 2 * rate) ** (step - 1)
    assert update.model.get_parameter("w").item() == pytest.approx(before)
    assert float(update.direction["w"]) == pytest.approx(-2 * rate * before)
    along = loss_along(update.model, update.inputs, update.targets, update.direction, [0.0, 1.0], loss=square)
    assert along["loss"].tolist() == pytest.approx([expected[step - 1], expected[step]])


def test_a_network_that_starts_beyond_the_limit_has_no_update() -> None:
    unit = torch.ones(1, dtype=torch.float64)
    for start in (1e6, float("nan")):
        found = find_divergence(Point(start), [(unit, unit)] * 3, 0.1, plain_sgd, loss=square)
        assert found.diverged
        assert len(found.losses) == 1
        assert found.update is None
    assert find_divergence(Point(1.0), [], 0.1, plain_sgd, loss=square) == Descent((), diverged=False)
    assert find_divergence(Point(3.0), [(unit, unit)], 0.1, plain_sgd, loss=square, limit=8.0).diverged


def test_a_training_that_is_repeated_has_the_same_losses() -> None:
    model = nn.Sequential(wide_resnet(10, 1), nn.Dropout(0.5))
    data = [(torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))) for _ in range(3)]
    first, again = (find_divergence(model, data, 1e4) for _ in range(2))
    assert first.diverged
    assert first.losses == again.losses


@pytest.fixture(scope="module", params=[0, 2])
def diverging(request: pytest.FixtureRequest) -> DivergingUpdate:
    """Of an unnormalized ResNet-110 at the rate 0.002."""
    found = find_divergence(resnet110(BARE, request.param), batches(8, 16, 16, request.param), 0.002)
    assert found.diverged
    assert found.update is not None
    return found.update
