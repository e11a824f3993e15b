"""Weights that are changed between steps, sorted data, and optimizers that step during the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from watched import batch, kinds, mlp

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.WatchWarning")


def test_weights_that_are_masked_or_clamped_by_hand() -> None:
    """Weights that are decayed by hand are a row of the catalogue."""
    torch.manual_seed(0)
    masks = {(3, 32): torch.rand(3, 32) > 0.9, (32, 20): torch.rand(32, 20) > 0.9, (32, 32): torch.rand(32, 32) > 0.9}

    def masked(weight: Tensor) -> None:
        weight.data.mul_(masks.get(tuple(weight.shape), torch.tensor(1.0)))

    def clamped(weight: Tensor) -> None:
        weight.data.clamp_(-0.01, 0.01)

    for change in (masked, clamped):

        def run(model: nn.Module, loss: Callable[[], Tensor], change: Callable[[Tensor], None] = change) -> None:
            optimizer = SGD(model.parameters(), lr=0.05)
            for _ in range(60):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
                for weight in model.parameters():
                    change(weight)

        assert "set_back" not in kinds(run)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_data_sorted_by_class(is_sorted: bool) -> None:
    torch.manual_seed(1)
    model, x = mlp(), torch.randn(960, 20)
    y = x[:, :3].argmax(1)
    order = y.argsort() if is_sorted else torch.randperm(960)
    optimizer = SGD(model.parameters(), 0.05)
    with nl.watch(model) as watch:
        for part in order.split(16):
            optimizer.zero_grad()
            watch.loss(F.cross_entropy(model(x[part]), y[part])).backward()
            optimizer.step()
    assert [found.kind for found in watch.findings if found.kind == "sorted_data"] == ["sorted_data"] * is_sorted


def test_optimizers_that_step_during_the_backward_pass() -> None:
    networks = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        watch = nl.watch(model, 5) if is_watched else None
        optimizers = {weight: SGD([weight], lr=0.05, momentum=0.9) for weight in model.parameters()}

        def step(weight: Tensor, optimizers: dict[nn.Parameter, SGD] = optimizers) -> None:
            optimizer = optimizers[weight]  # type: ignore[index]
            optimizer.step()
            optimizer.zero_grad()

        for weight in optimizers:
            weight.register_post_accumulate_grad_hook(step)
        for _ in range(30):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
        networks.append(model.state_dict())
        assert watch is None or (watch.messages, watch.step) == ((), 30)
    assert all(torch.equal(value, networks[1][name]) for name, value in networks[0].items())


@pytest.mark.parametrize("rare", [100.0, 1.0])
def test_a_step_of_adam_that_is_larger_than_those_before(rare: float) -> None:
    """One batch with a large gradient, after a hundred with small ones."""
    torch.manual_seed(1)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    with nl.watch(model) as watch:
        for index in range(150):
            x, y = batch()
            scale = rare if index == 110 else 1.0
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y if scale == 1 else (y + 1) % 3)
            (scale * watch.loss(value)).backward()
            optimizer.step()
    assert ("update_spike" in [found.kind for found in watch.findings]) == (rare > 1)
