"""Schedules against closed forms, counted epochs and torch's own schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR

from normless_lab.train._schedules import rate_multiplier, set_rate


def rates_of(scheduler: LRScheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


def optimizer() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@pytest.mark.parametrize(
    ("schedule", "epochs", "first", "every"),
    [("hold_then_halve", 200, 100, 10), ("hold_then_halve(times=9)", 90, 45, 5)],
)
def test_hold_then_halve_counts_exactly(schedule: str, epochs: int, first: int, every: int) -> None:
    """ZeroInit, sections 3 and 5: by 2 every 10 epochs of 200 after 100, every 5 of 90 after 45."""
    total = epochs * 391
    for done in range(total):
        epoch = Fraction(done, 391)
        halvings = 0 if epoch < first else 1 + math.floor((epoch - first) / every)
        assert rate_multiplier(schedule, done, total) == 2.0**-halvings


@pytest.mark.parametrize(
    ("schedule", "total", "at", "by"),
    [
        ("step", 164, [82, 123], 10),
        ("step(at=(0.3, 0.6, 0.8), by=5)", 2000, [600, 1200, 1600], 5),
        ("step(at=(0.5,))", 7, [4], 10),
    ],
)
def test_step_is_torchs_multi_step(schedule: str, total: int, at: list[int], by: float) -> None:
    expected = rates_of(MultiStepLR(optimizer(), at, gamma=1 / by), total)
    assert [rate_multiplier(schedule, done, total) for done in range(total)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        ("cosine", lambda optimizer: CosineAnnealingLR(optimizer, T_max=77)),
        ("linear", lambda optimizer: LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=77)),
    ],
)
def test_falling_rates_are_torchs(schedule: str, make: Callable[[torch.optim.SGD], LRScheduler]) -> None:
    expected = rates_of(make(optimizer()), 77)
    assert [rate_multiplier(schedule, done, 77) for done in range(77)] == pytest.approx(expected, rel=1e-9)


def test_set_rate_keeps_the_groups_relative_rates() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "rate_scale": scale} for scale in (1.0, 0.1)]
    stepped = torch.optim.SGD([*groups, {"params": [torch.nn.Parameter(torch.zeros(1))]}], lr=7.0)
    set_rate(stepped, 0.5)
    assert [group["lr"] for group in stepped.param_groups] == [0.5, 0.05, 0.5]
