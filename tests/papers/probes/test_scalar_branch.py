"""Updates of a scalar branch: exact steps, the first-order formula and closed forms."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normless_papers.probes.scalar_branch import (
    exact_update,
    first_order_update,
    scalar_branch,
    scalar_branch_table,
    update_slopes,
)

SCALARS = st.lists(st.one_of(st.just(0.0), st.floats(0.1, 2)), min_size=2, max_size=5)


def test_fixup_theorem_4_slopes() -> None:
    """fixup/theorem-4: slope -1 of log|ΔF| against log L for both options, 0 for a_i = 1; F = 0 for the second."""
    table = scalar_branch_table(layers=(2, 3, 4, 6))
    slopes = update_slopes(table)
    assert slopes["slope"].to_numpy() == pytest.approx(slopes["predicted_slope"].to_numpy(), abs=1e-3)
    assert set(slopes.loc[slopes["option"] != "ones", "predicted_slope"]) == {-1.0}
    assert (table.loc[table["option"] == "zero_last", "output"] == 0).all()
    assert (table.loc[table["option"] == "equal", "output"] > 0).all()
    relative = (table["update"] / table["predicted_update"] - 1).abs()
    assert relative.max() < 0.02


@settings(deadline=None)
@given(st.integers(1, 10_000), st.integers(2, 6), st.floats(1e-6, 1e-2))
def test_fixup_theorem_4_closed_forms(blocks: int, layers: int, rate: float) -> None:
    """fixup/theorem-4: m·η/L for equal scalars, η/L with the last at 0, m·η for ones."""
    expected = {"equal": layers / blocks, "zero_last": 1 / blocks, "ones": layers}
    for option, slope in expected.items():
        scalars = scalar_branch(option, blocks, layers)  # type: ignore[arg-type]
        assert first_order_update(scalars, rate) == pytest.approx(-rate * slope, rel=1e-9)
    # With the last scalar at 0 only it moves: the formula is exact at any step.
    assert exact_update(scalar_branch("zero_last", blocks, layers), rate) == pytest.approx(-rate / blocks, rel=1e-9)


@settings(deadline=None)
@given(SCALARS, st.floats(0.5, 2), st.floats(-2, 2))
def test_the_formula_misses_the_step_by_the_square_of_the_rate(
    values: list[float], signal: float, slope: float
) -> None:
    scalars = torch.tensor(values, dtype=torch.float64)
    misses = [
        exact_update(scalars, rate, signal=signal, slope=slope)
        - first_order_update(scalars, rate, signal=signal, slope=slope)
        for rate in (1e-5, 5e-6)
    ]
    if abs(misses[0]) > 1e-11:
        assert misses[0] / misses[1] == pytest.approx(4, rel=0.02)


def test_two_zeros_stop_a_branch_for_good() -> None:
    scalars = torch.tensor([1.0, 0.0, 0.0])
    assert first_order_update(scalars, 0.1) == 0
    assert exact_update(scalars, 0.1) == 0


def test_the_condition_is_necessary() -> None:
    """Scalars other than the theorem's give another slope: L^(-p) with product L^(-p(m-1)) of the others."""
    rate = 1e-6
    for power in (0.1, 0.4):
        updates = [exact_update(torch.tensor([blocks**-power] * 3), rate) for blocks in (10, 1000)]
        assert log(updates[1] / updates[0]) / log(100) == pytest.approx(-4 * power, abs=1e-3)


def test_what_is_no_branch_is_refused() -> None:
    with pytest.raises(ValueError, match="'equal', 'zero_last', 'ones', got 'half'"):
        scalar_branch("half", 4, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one block and two layers in a branch, got 4 and 1"):
        scalar_branch("equal", 4, 1)
    with pytest.raises(ValueError, match="at least two numbers of blocks"):
        update_slopes(scalar_branch_table((4,)))
