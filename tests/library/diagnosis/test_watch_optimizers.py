"""Faults of optimizers, scalers and of the order of the data that a watch names, beside loops that are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from watched import Run, batch, kinds, mlp

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.WatchWarning")


def epochs(anew: bool) -> Run:
    def run(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer: Optimizer = Adam(model.parameters(), 1e-3)
        for index in range(60):
            if anew and index % 10 == 0:
                optimizer = Adam(model.parameters(), 1e-3)
            optimizer.zero_grad()
            loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


@pytest.mark.parametrize(("anew", "said"), [(True, ["lost_state"]), (False, [])])
def test_an_optimizer_that_is_created_in_every_epoch(anew: bool, said: list[str]) -> None:
    assert kinds(epochs(anew)) == said


@pytest.mark.parametrize(("unscaled", "said"), [(False, ["never_unscaled"]), (True, [])])
def test_a_scaled_loss_without_the_scaler_s_step(unscaled: bool, said: list[str]) -> None:
    def run(model: nn.Module, loss: Callable[[], Tensor]) -> None:
        optimizer, scaler = Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cpu")  # type: ignore[attr-defined]
        for _ in range(30):
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            if unscaled:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()

    assert kinds(run) == said


@pytest.mark.parametrize(("is_sorted", "said"), [(True, ["sorted_data"]), (False, [])])
def test_data_sorted_by_class(is_sorted: bool, said: list[str]) -> None:
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
    assert [found.kind for found in watch.findings if found.kind == "sorted_data"] == said


@pytest.mark.parametrize(("rare", "said"), [(100.0, ["update_spike"]), (1.0, [])])
def test_a_step_of_adam_that_is_larger_than_those_before(rare: float, said: list[str]) -> None:
    """One batch with a large gradient, after a hundred with small ones."""
    torch.manual_seed(1)
    model = mlp()
    optimizer = Adam(model.parameters(), 0.1)
    with nl.watch(model) as watch:
        for index in range(150):
            x, y = batch()
            scale = rare if index == 110 else 1.0
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y if scale == 1 else (y + 1) % 3)
            (scale * watch.loss(value)).backward()
            optimizer.step()
    assert [found.kind for found in watch.findings if found.kind == "update_spike"] == said
