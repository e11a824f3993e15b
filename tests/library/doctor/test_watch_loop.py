"""Optimizers that step during the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from watched import batch

import normless as nl

pytestmark = pytest.mark.filterwarnings("ignore::normless.doctor.WatchWarning")


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
