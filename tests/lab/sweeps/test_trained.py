"""When a network counts as trained: half of its control's gain over chance."""

from __future__ import annotations

import math

import pytest

from normless_lab.sweeps import control_accuracy, trained_against


@pytest.mark.parametrize(
    ("accuracy", "control", "chance", "expected"),
    [
        # CIFAR-10: half of the gain of 90 % over 10 % is at 50 %.
        (0.51, 0.9, 0.1, True),
        (0.49, 0.9, 0.1, False),
        # Significantly above chance is not enough.
        (0.109, 0.9, 0.1, False),
        # At exactly half, in numbers that floating point has.
        (0.5, 0.75, 0.25, True),
        (0.95, 0.9, 0.1, True),
        # A control that learned nothing says nothing, not even of a better network.
        (0.9, 0.1, 0.1, False),
        (0.9, 0.05, 0.1, False),
        (math.nan, 0.9, 0.1, False),
        (0.9, math.nan, 0.1, False),
    ],
)
def test_trained_is_half_of_the_gain_over_chance(
    accuracy: float, control: float, chance: float, expected: bool
) -> None:
    assert trained_against(accuracy, control, chance) is expected


def test_the_control_is_that_of_the_depth_or_the_shallowest_where_that_failed() -> None:
    controls = {400: 0.2, 100: 0.8, 16: 0.9}
    assert [control_accuracy(controls, depth, 0.1) for depth in (16, 100, 400)] == [0.9, 0.8, 0.9]


def test_a_control_that_failed_does_not_count_as_trained_by_itself() -> None:
    controls = {16: 0.9, 400: 0.2}
    assert not trained_against(0.2, control_accuracy(controls, 400, 0.1), 0.1)
