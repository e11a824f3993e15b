"""The schedule alone: when norms are frozen, what a jump of the loss is, and how often a norm is tried."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from normless.removal.schedule import Schedule


def run(schedule: Schedule, loss: Callable[[int], float], steps: int) -> list[str]:
    """Advance a schedule, which freezes what is first in its queue; return what happened at which step."""
    events = []
    for step in range(1, steps + 1):
        ended = schedule.advance(loss(step))
        if ended is not None:
            events.append(f"{step}: {ended.path} {ended.outcome}")
        if schedule.is_due:
            schedule.begin(schedule.queue.pop(0), "norm")
            events.append(f"{step}: {schedule.history[-1].path}")
    return events


def test_norms_are_frozen_in_turn() -> None:
    schedule = Schedule(interval=3, start=5, tolerance=0.1, attempts=2, queue=["a", "b"])
    events = run(schedule, lambda step: 1.0, 20)
    assert events == ["5: a", "8: a frozen", "8: b", "11: b frozen"]
    assert [freezing.cost for freezing in schedule.history] == [0, 0]


def test_before_and_after_are_means_of_the_steps_around_a_freezing() -> None:
    schedule = Schedule(interval=4, start=2, tolerance=9.0, attempts=2, queue=["a"])
    run(schedule, lambda step: float(step), 6)
    (freezing,) = schedule.history
    assert freezing.before == pytest.approx((1 + 2) / 2)
    assert freezing.after == pytest.approx((3 + 4 + 5 + 6) / 4)


def test_a_jump_is_taken_back_at_once_and_tried_again_after_times_that_double() -> None:
    frozen: list[int] = []

    def loss(step: int) -> float:
        return 2.0 if schedule.watched is not None else 1.0

    schedule = Schedule(interval=4, start=3, tolerance=0.5, attempts=3, queue=["a", "b"])
    events = run(schedule, loss, 40)
    assert events[:6] == ["3: a", "4: a taken back", "12: a", "13: a taken back", "29: a", "30: a taken back"]
    assert schedule.set_aside == ["a"]
    assert schedule.queue == ["b"]
    assert frozen == []


def test_a_loss_that_is_not_finite_is_taken_back_and_not_compared_with_later() -> None:
    schedule = Schedule(interval=3, start=2, tolerance=100.0, attempts=3, queue=["a"])
    events = run(schedule, lambda step: float("nan") if step == 3 else 1.0, 20)
    assert events == ["2: a", "3: a taken back", "9: a", "12: a frozen"]
    assert schedule.history[-1].before == 1.0


def test_a_loss_that_varies_from_batch_to_batch_does_not_jump() -> None:
    schedule = Schedule(interval=5, start=10, tolerance=0.0, attempts=1, queue=["a"])
    events = run(schedule, lambda step: 1.0 + 0.5 * (step % 2), 20)
    assert events == ["10: a", "15: a frozen"]


def test_the_state_is_plain_data_and_continues() -> None:
    def make() -> Schedule:
        return Schedule(interval=3, start=4, tolerance=0.1, attempts=2, queue=["a", "b", "c"])

    def loss(step: int) -> float:
        return 3.0 if step in (9, 10) else 1.0 + 0.01 * (step * 7 % 5)

    whole = make()
    run(whole, loss, 40)
    for stop in range(1, 25):
        first, second = make(), make()
        run(first, loss, stop)
        second.restore(json.loads(json.dumps(first.state())))
        run(second, lambda step, stop=stop: loss(step + stop), 40 - stop)
        assert second.history == whole.history
        assert second.state() == whole.state()
