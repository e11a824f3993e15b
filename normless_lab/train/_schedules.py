"""Schedules of the learning rate: the share of training done → the multiplier of the rate.

A schedule is a pure function of the fraction of training done before a step, 0 ≤ fraction < 1, so the rate of
any step is known without running the steps before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING

from normless.registry import check_arguments
from normless.spec import parse_call

if TYPE_CHECKING:
    from torch.optim import Optimizer

RateFunction = Callable[[float], float]


def hold_then_halve(fraction: float, times: int = 10) -> float:
    """Constant for half the budget, then halved `times` times at equal distances, for the first time at exactly half.

    2^-max(0, ⌊2 · times · fraction⌋ − times + 1): of 200 epochs, 1/2 from epoch 100 on, 1/4 from 110, 2^-10 from 190;
    of 90 epochs, 9 times, 1/2 from 45 on, 1/4 from 50, 2^-9 from 85 (ZeroInit, sections 3 and 5).
    """
    # An eighteenth has no exact number in floating point; a step is never as short as this.
    return 2.0 ** -max(0, math.floor(2 * times * fraction + 1e-9) - times + 1)


def step(fraction: float, at: Sequence[float] = (0.5, 0.75), by: float = 10.0) -> float:
    """Divided `by` a factor at each of some shares of the budget, by default by 10 at 50% and again at 75%.

    The default is that of He et al. 2016 (section 4.2) and Bjorck et al. 2018 (appendix B).
    """
    return float(by) ** -sum(fraction >= share for share in at)


def cosine(fraction: float) -> float:
    """Half a cosine from 1 to 0: (1 + cos(π · fraction)) / 2 (Loshchilov & Hutter 2016, Eq. 5, no restart)."""
    return (1.0 + math.cos(math.pi * fraction)) / 2.0


def linear(fraction: float) -> float:
    """A straight line from 1 to 0: 1 − fraction (Devlin et al. 2019, appendix A.2, which has a warm-up before it)."""
    return 1.0 - fraction


def constant(fraction: float) -> float:
    """Always 1."""
    return 1.0


SCHEDULES: Mapping[str, Callable[..., float]] = {
    "hold_then_halve": hold_then_halve,
    "step": step,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}


@cache
def schedule_of(text: str) -> RateFunction:
    """Return the schedule of a text: a name, or ``step(at=(0.3, 0.6, 0.9), by=5)``, ``hold_then_halve(times=9)``.

    ValueError for another one, and for shares that do not increase from 0 to 1, no factor above 1 or no times.
    """
    name, options = parse_call(text)
    if name not in SCHEDULES:
        raise ValueError(f"Unknown schedule {text!r}; the schedules are {', '.join(SCHEDULES)}.")
    check_arguments(f"schedule {name}", options, SCHEDULES[name], given=("fraction",))
    ends = (0.0, *options.get("at", ()), 1.0)
    if any(low >= high for low, high in pairwise(ends)):
        raise ValueError(f"Expected shares of the training that increase between 0 and 1 as at, got {ends[1:-1]}.")
    if options.get("by", 2) <= 1 or options.get("times", 1) < 1:
        raise ValueError(f"Expected by above 1 and times of 1 or more, got {text!r}.")
    return partial(SCHEDULES[name], **options)


def rate_multiplier(schedule: str, done: int, total: int, warmup: int = 0) -> float:
    """Return the multiplier of the rate for the step that follows `done` of `total` steps.

    schedule_of(schedule)(done / total) · min(1, (done + 1) / warmup): the warm-up is linear, its first step has
    1 / warmup of the rate and its last the whole rate (Goyal et al. 2017, section 2.2); it is part of the
    budget, not put before it.

    An unknown schedule is a ValueError, see `schedule_of`, and so is `done` outside 0 ≤ done < total. Without a
    warm-up its steps are 0.
    """
    if not 0 <= done < total:
        raise ValueError(f"Expected 0 ≤ done < total steps, got done={done} of total={total}.")
    warm = min(1.0, (done + 1) / warmup) if warmup else 1.0
    return schedule_of(schedule)(done / total) * warm


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of each parameter group to `rate` times the group's `rate_scale` (default 1).

    A rate that is a tensor, as a captured step reads it, stays that tensor.
    """
    for group in optimizer.param_groups:
        scaled = rate * group.get("rate_scale", 1.0)
        # A tensor, as torch.compile asks for, keeps its place.
        if not isinstance(group["lr"], (int, float)):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled
