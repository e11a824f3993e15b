"""When a network counts as trained: half of its control's gain over chance."""

from __future__ import annotations

import math

import pytest

from normless_lab.sweeps import trained_against


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
