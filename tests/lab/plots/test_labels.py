"""Labels keep their order and their distance, and move no further than they must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from normless_lab.plots.axes import spread

HEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(HEIGHTS, st.floats(0, 0.12))
def test_labels_are_apart_in_order_and_inside(wanted: list[float], gap: float) -> None:
    placed = spread(wanted, gap)
    order = np.argsort(wanted, kind="stable")
    assert np.all(np.diff(np.array(placed)[order]) >= gap - 1e-12)
    assert min(placed) >= -1e-12
    assert max(placed) <= 1 + 1e-12


@given(HEIGHTS)
def test_labels_far_apart_stay_where_they_are(wanted: list[float]) -> None:
    assert spread(wanted, 0.0) == pytest.approx(wanted)


@pytest.mark.parametrize("wanted", [[0.5, 0.5, 0.5], [0.7, 0.1, 0.68, 0.66, 0.12], [0.3, 0.34, 0.9, 0.31]])
def test_no_placement_is_nearer(wanted: list[float]) -> None:
    gap, ordered = 0.08, np.sort(wanted)
    best = minimize(
        lambda placed: ((placed - ordered) ** 2).sum(),
        np.linspace(0, 1, len(ordered)),
        constraints={"type": "ineq", "fun": lambda placed: np.diff(placed) - gap},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    assert sorted(spread(wanted, gap)) == pytest.approx(best.x, abs=1e-5)


def test_too_many_labels_keep_their_distance_and_run_over_the_top() -> None:
    assert spread([0.5] * 4, 0.5) == pytest.approx([0.0, 0.5, 1.0, 1.5])


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="gap -1"):
        spread([0.5], -1)
