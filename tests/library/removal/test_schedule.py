"""The schedule alone: when norms are frozen, what a jump of the loss is, and how often a norm is tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from normless.removal.schedule import Schedule

JUMP = ["3: a", "4: a taken back", "12: a", "13: a taken back", "29: a", "30: a taken back"]
# Interval, start, tolerance, attempts; the loss at a step while a norm is watched or not; what happens.
CASES: dict[str, tuple[tuple[int, int, float, int], Callable[[int, bool], float], list[str]]] = {
    "in turn": ((3, 5, 0.1, 2), lambda step, watched: 1.0, ["5: a", "8: a frozen", "8: b", "11: b frozen"]),
    "times that double": ((4, 3, 0.5, 3), lambda step, watched: 2.0 if watched else 1.0, JUMP),
    "not finite": (
        (3, 2, 100.0, 3),
        lambda step, watched: float("nan") if step == 3 else 1.0,
        ["2: a", "3: a taken back", "9: a", "12: a frozen", "12: b", "15: b frozen"],
    ),
    "batches that vary": (
        (5, 10, 0.0, 1),
        lambda step, watched: 1.0 + 0.5 * (step % 2),
        ["10: a", "15: a frozen", "15: b", "20: b frozen"],
    ),
}


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


@pytest.mark.parametrize("case", CASES)
def test_what_happens_at_which_step(case: str) -> None:
    (interval, start, tolerance, attempts), loss, expected = CASES[case]
    schedule = Schedule(interval=interval, start=start, tolerance=tolerance, attempts=attempts, queue=["a", "b"])
    events = run(schedule, lambda step: loss(step, schedule.watched is not None), 40)
    assert events == expected
    if case == "times that double":
        assert (schedule.set_aside, schedule.queue) == (["a"], ["b"])
    else:
        assert schedule.history[-1].before == pytest.approx(1.3 if case == "batches that vary" else 1.0)
    if case == "in turn":
        assert [freezing.cost for freezing in schedule.history] == [0, 0]
