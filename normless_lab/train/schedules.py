"""Schedules of the learning rate: the share of training done → the multiplier of the rate.

A schedule is a pure function of the fraction of training done before a step, 0 ≤ fraction < 1, so the rate of
any step is known without running the steps before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor
from torch.optim import Optimizer

Schedule = Callable[[float], float]


def hold_then_halve(fraction: float) -> float:
    """Constant for half the budget, then halved every 5% of it, for the first time at exactly half.

    2^-max(0, ⌊20 · fraction⌋ − 9): of 200 epochs, 1/2 from epoch 100 on, 1/4 from 110, 2^-10 from 190 (the
    SkipInit and ZeroInit papers). The product is exact for a fraction k/20 in floating point (20 = 2⁴ + 2²).
    """
    return 2.0 ** -max(0, math.floor(20 * fraction) - 9)


def step(fraction: float) -> float:
    """Divided by 10 at 50% and again at 75% of the budget (Bjorck et al. 2018, appendix B)."""
    return 1.0 if fraction < 0.5 else 0.1 if fraction < 0.75 else 0.01


def cosine(fraction: float) -> float:
    """Half a cosine from 1 to 0: (1 + cos(π · fraction)) / 2 (Loshchilov & Hutter 2016, Eq. 5, no restart)."""
    return (1.0 + math.cos(math.pi * fraction)) / 2.0


def linear(fraction: float) -> float:
    """A straight line from 1 to 0: 1 − fraction (Devlin et al. 2019, appendix A.2, which has a warm-up before it)."""
    return 1.0 - fraction


def constant(fraction: float) -> float:
    """Always 1."""
    return 1.0


SCHEDULES: Mapping[str, Schedule] = {
    "hold_then_halve": hold_then_halve,
    "step": step,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}


def rate_multiplier(schedule: str, done: int, total: int, warmup: int = 0) -> float:
    """Return the multiplier of the rate for the step that follows `done` of `total` steps.

    SCHEDULES[schedule](done / total) · min(1, (done + 1) / warmup): the warm-up is linear, its first step has
    1 / warmup of the rate and its last the whole rate (Goyal et al. 2017, section 2.2); it is part of the
    budget, not put before it.

    An unknown schedule is a ValueError, and so is `done` outside 0 ≤ done < total. Without a warm-up its steps are 0.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"Unknown schedule {schedule!r}; the schedules are {', '.join(SCHEDULES)}.")
    if not 0 <= done < total:
        raise ValueError(f"Expected 0 ≤ done < total steps, got done={done} of total={total}.")
    warm = min(1.0, (done + 1) / warmup) if warmup else 1.0
    return SCHEDULES[schedule](done / total) * warm


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of each parameter group to `rate` times the group's `rate_scale` (default 1).

    A rate that is a tensor, as a captured step reads it, stays that tensor.
    """
    for group in optimizer.param_groups:
        scaled = rate * group.get("rate_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled
