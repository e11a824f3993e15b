"""Updates of a scalar branch: exact steps, the first-order formula and closed forms."""

from __future__ import annotations

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


def test_two_zeros_stop_a_branch_for_good() -> None:
    scalars = torch.tensor([1.0, 0.0, 0.0])
    assert first_order_update(scalars, 0.1) == 0
    assert exact_update(scalars, 0.1) == 0
